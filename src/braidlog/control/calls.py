"""The table of calls: the name, request and answer of each method.

It is read from the `ControlPlane` interface.
"""

import inspect
from dataclasses import dataclass
from typing import Any, get_type_hints

import msgspec

from braidlog.control.interface import ControlPlane, Message


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    request: msgspec.msgpack.Decoder[Any]
    answer: msgspec.msgpack.Decoder[Any]


def _read_interface() -> dict[str, Call]:
    calls: dict[str, Call] = {}
    for name, method in inspect.getmembers(ControlPlane, inspect.iscoroutinefunction):
        hints = get_type_hints(method)
        request_type = hints.get("request")
        if request_type is None:
            continue
        assert issubclass(request_type, Message), name
        calls[name] = Call(name, msgspec.msgpack.Decoder(request_type), msgspec.msgpack.Decoder(hints["return"]))
    return calls


CALLS = _read_interface()
