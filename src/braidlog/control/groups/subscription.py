"""The bytes that members of a `consumer` group exchange.

They are subscriptions, and their leader's assignments.

All versions start the same way, and members may be newer than this code, so the bytes after these fields are ignored:

    subscription: version i16 │ topics [string] │ user data bytes │ from 1: owned [topic string, partitions [i32]] │ …
    assignment:   version i16 │ [topic string, partitions [i32]] │ user data bytes │ …

Strings have an i16 length, arrays and bytes an i32 one.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

CONSUMER_PROTOCOL_TYPE = "consumer"

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

TopicIndexes = dict[str, list[int]]
"""Partition indexes by topic name."""


@dataclass(frozen=True, slots=True)
class Subscription:
    version: int
    topics: frozenset[str]
    owned: TopicIndexes | None
    """What the member still owns; None: its version does not say."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topic names; None: the bytes are not a subscription.

    Never raises: members send what they like.
    """
    try:
        return _Reader(metadata).topics()[1]
    except ValueError:
        return None


def read_subscription(metadata: bytes) -> Subscription | None:
    """Return the subscription; None: the bytes are not one."""
    try:
        reader = _Reader(metadata)
        version, topics = reader.topics()
        owned = None
        if version >= 1:
            reader.skip_bytes()
            owned = reader.topic_indexes()
        return Subscription(version, topics, owned)
    except ValueError:
        return None


def read_assignment(assignment: bytes) -> TopicIndexes | None:
    """Return the assignment; None: the bytes are not one.

    No bytes are an empty assignment.
    """
    if not assignment:
        return {}
    try:
        reader = _Reader(assignment)
        if reader.int16() < 0:
            return None
        return reader.topic_indexes()
    except ValueError:
        return None


def write_assignment(version: int, partitions: Mapping[str, list[int]]) -> bytes:
    """Encode an assignment in a version that the member knows.

    The member's own subscription shows the version.
    """
    parts = [_INT16.pack(max(0, min(version, 3))), _INT32.pack(len(partitions))]
    for topic, indexes in partitions.items():
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name, struct.pack(f">i{len(indexes)}i", len(indexes), *indexes))
    parts.append(_INT32.pack(-1))
    return b"".join(parts)


class _Reader:
    """Reads Kafka's primitive types.

    Raises ValueError if the bytes end too soon or make no sense.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def topics(self) -> tuple[int, frozenset[str]]:
        version = self.int16()
        if version < 0:
            raise ValueError("negative version")
        return version, frozenset(self._string() for _ in range(self._count(_INT16.size)))

    def topic_indexes(self) -> TopicIndexes:
        found: TopicIndexes = {}
        for _ in range(self._count(_INT16.size + _INT32.size)):
            topic = self._string()
            count = self._count(_INT32.size)
            found.setdefault(topic, []).extend(struct.unpack(f">{count}i", self._take(_INT32.size * count)))
        return found

    def skip_bytes(self) -> None:
        self._take(max(self._int32(), 0))

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(_INT16.size))[0])

    def _int32(self) -> int:
        return int(_INT32.unpack(self._take(_INT32.size))[0])

    def _count(self, entry_bytes_min: int) -> int:
        """Read a count.

        One that the remaining bytes cannot hold is refused before anything is built from it.
        """
        count = self._int32()
        if not 0 <= count <= (len(self._data) - self._position) // entry_bytes_min:
            raise ValueError("impossible count")
        return count

    def _string(self) -> str:
        return self._take(self.int16()).decode()

    def _take(self, length: int) -> bytes:
        if not 0 <= length <= len(self._data) - self._position:
            raise ValueError("too short")
        self._position += length
        return self._data[self._position - length : self._position]
