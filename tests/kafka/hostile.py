"""Requests that are valid and meant to harm: every API and version, with repeated names, huge counts and odd values.

Built by walking kio's schemas, so that a new API or version is covered without a line here. One seed gives one sequence
of requests.
"""

import random
import selectors
import struct
from collections.abc import Sequence
from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_origin

from kio.index import load_request_schema
from tests.kafka.raw import API_VERSIONS as API_VERSIONS_KEY
from tests.kafka.raw import Peer, frame, header

from braidlog.agent.apis.dispatch import API_VERSIONS
from braidlog.wire.header import is_flexible
from braidlog.wire.primitives import count_of, nullable_string, string
from braidlog.wire.shape import FIXED_BYTES

PRODUCE = 0
WITHOUT_SCHEMA = {(PRODUCE, version) for version in range(3)}
"""Advertised for the sake of old clients, and always refused."""

WAITS_MS = (0, 1, 100)
"""Nobody has to wait longer than this for an answer."""
REPEATED_MAX = 4_000
WAIT_S_MAX = 120.0
SEND_BYTES = 256 * 1024


def advertised() -> list[tuple[int, int]]:
    """Every API and version that can be asked for."""
    return [
        (key, version)
        for key, versions in sorted(API_VERSIONS.items())
        for version in versions
        if (key, version) not in WITHOUT_SCHEMA
    ]


class Hostility:
    """Makes requests about topics and groups that exist, and others."""

    def __init__(self, seed: int, topics: Sequence[str], *, elements_max: int) -> None:
        self._random = random.Random(seed)
        self._topics = list(topics)
        self._elements_max = elements_max
        self._left = 0
        """Elements that the request may still have: arrays in arrays would multiply otherwise."""

    def request(self, key: int, version: int) -> bytes:
        """One frame."""
        self._left = self._elements_max
        schema: Any = load_request_schema(key, version)
        tags = b"\x00" if is_flexible(key, version) else b""
        return frame(header(key, version, 7) + tags + self._entity(schema))

    def _entity(self, entity_type: Any) -> bytes:
        flexible: bool = entity_type.__flexible__
        parts = [self._field(field, flexible) for field in fields(entity_type) if "tag" not in field.metadata]
        return b"".join(parts) + (b"\x00" if flexible else b"")

    def _field(self, field: Any, flexible: bool) -> bytes:
        options = get_args(field.type)
        nullable = NoneType in options
        kind = next(option for option in options if option is not NoneType) if nullable else field.type
        is_null = nullable and self._random.random() < 0.1
        if get_origin(kind) is tuple:
            return count_of(-1, flexible) if is_null else self._array(field, get_args(kind)[0], flexible)
        kafka_type = field.metadata.get("kafka_type")
        if is_null and kafka_type == "string":
            return nullable_string(None, flexible)
        if is_null and kafka_type in ("bytes", "records"):
            return count_of(-1, flexible)
        if is_null and kafka_type is None:
            return b"\xff"
        marker = b"\x01" if nullable and kafka_type is None else b""
        return marker + self._single(field, kind, flexible)

    def _array(self, field: Any, kind: Any, flexible: bool) -> bytes:
        count = min(self._random.choice((0, 1, 2, 20, 300, REPEATED_MAX)), self._left)
        self._left -= count
        if count > 300 or self._random.random() < 0.5:  # the same over and over
            inner_left, self._left = self._left, self._left // max(count, 1)
            elements = self._single(field, kind, flexible) * count
            self._left = inner_left
        else:
            elements = b"".join(self._single(field, kind, flexible) for _ in range(count))
        return count_of(count, flexible) + elements

    def _single(self, field: Any, kind: Any, flexible: bool) -> bytes:
        if hasattr(kind, "__flexible__"):
            return self._entity(kind)
        kafka_type = field.metadata["kafka_type"]
        if kafka_type == "string":
            return string(self._text(field.name), flexible)
        if kafka_type in ("bytes", "records"):
            value = self._random.randbytes(self._random.choice((0, 1, 61, 1_000)))
            return count_of(len(value), flexible) + value
        return self._number(kafka_type)

    def _number(self, kafka_type: str) -> bytes:
        size = FIXED_BYTES[kafka_type]
        if kafka_type == "bool":
            return self._random.choice((b"\x00", b"\x01"))
        if kafka_type.startswith("timedelta"):
            return self._random.choice(WAITS_MS).to_bytes(size, "big")
        if kafka_type == "uuid":
            return self._random.choice((bytes(size), self._random.randbytes(size)))
        highest = (1 << (8 * size - 1)) - 1
        value = self._random.choice((0, 0, 1, 2, -1, -2, self._random.randrange(128), highest, -highest - 1))
        return value.to_bytes(size, "big", signed=True)

    def _text(self, name: str) -> str:
        invented = f"x{self._random.randrange(1 << 30)}"
        if "topic" in name or name in ("name", "resource_name"):
            return self._random.choice((*self._topics[:3], self._random.choice(self._topics), invented, "", "y" * 249))
        return self._random.choice((invented, invented, "group", "", "z" * 200, "range"))


def announced(length: int, sent: bytes = b"") -> bytes:
    """The beginning of a frame that never ends."""
    return struct.pack(">i", length) + sent


def exchange(peer: Peer, requests: bytes) -> int:
    """Send requests and take their answers, both at once, up to the answer to a last small request. Returns how many
    bytes came. An agent may also close the connection: that is an answer, too."""
    last = 99
    unsent = memoryview(requests + frame(header(API_VERSIONS_KEY, 0, last)))
    peer.socket.setblocking(False)
    received, answer = 0, bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(peer.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while True:
            ready = selector.select(WAIT_S_MAX)
            if not ready:
                raise TimeoutError(f"no answer within {WAIT_S_MAX} s")
            try:
                if ready[0][1] & selectors.EVENT_WRITE:
                    unsent = unsent[peer.socket.send(unsent[:SEND_BYTES]) :]
                    if not unsent:
                        selector.modify(peer.socket, selectors.EVENT_READ)
                if ready[0][1] & selectors.EVENT_READ:
                    data = peer.socket.recv(SEND_BYTES)
                    if not data:
                        return received
                    received += len(data)
                    answer += data
            except ConnectionError:
                return received
            while len(answer) >= 8 and len(answer) >= 4 + (length := struct.unpack_from(">i", answer)[0]):
                if struct.unpack_from(">i", answer, 4)[0] == last:
                    return received
                del answer[: 4 + length]
