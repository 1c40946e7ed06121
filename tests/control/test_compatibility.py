"""An agent one release older or newer works with the control plane: messages only ever grow at their end."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from braidlog.control import interface
from braidlog.control.interface import AgentInfo, FeedPosition, FeedRequest, Message, PartitionBounds, TopicInfo

GOLDEN = Path(__file__).parent / "golden" / "messages.json"
"""The fields of every message in an earlier release. Add new messages and fields with `write_golden`; change none."""


def messages() -> Iterator[type[Message]]:
    for name in interface.__all__:
        kind = getattr(interface, name)
        if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message:
            yield kind


def write_golden() -> None:
    fields = {kind.__name__: list(kind.__struct_fields__) for kind in messages()}
    GOLDEN.write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n")


RELEASED: dict[str, list[str]] = json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("name", sorted(RELEASED))
def test_a_message_keeps_its_fields_and_new_ones_have_defaults(name: str) -> None:
    kind = getattr(interface, name)
    known = RELEASED[name]
    fields = msgspec.structs.fields(kind)
    assert [field.name for field in fields[: len(known)]] == known
    assert all(not field.required for field in fields[len(known) :]), "an older sender leaves it out"


def test_fields_of_a_newer_release_are_ignored() -> None:
    for message in (
        FeedRequest(FeedPosition(1, 2), 3, "aa"),
        PartitionBounds(1, 2, 3, 4),
        TopicInfo(b"t" * 16, "t", [1], {}, 1, 0),
        AgentInfo(1, "aa", "host", 9092, "zone"),
    ):
        raw = [*msgspec.msgpack.decode(msgspec.msgpack.encode(message)), "new", {"more": 1}]
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(raw), type=type(message)) == message


def test_fields_that_an_older_release_lacks_have_their_defaults() -> None:
    old = msgspec.msgpack.encode([[1, 2], 3])
    assert msgspec.msgpack.decode(old, type=FeedRequest) == FeedRequest(FeedPosition(1, 2), 3)
    bounds = msgspec.msgpack.decode(msgspec.msgpack.encode([1, 2, 3, 4]), type=PartitionBounds)
    assert bounds.leader_epochs == ((0, 0),)
