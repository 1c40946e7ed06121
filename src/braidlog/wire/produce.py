"""Produce, versions 3 to 13, by hand: no request is more frequent.

Version 5 adds the log start offset, 8 the errors of single records, 9 is flexible, 10 adds the current leader, and 13
names topics by their ids.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from braidlog.wire.errors import MalformedRequest
from braidlog.wire.nodes import NO_LEADER, CurrentLeader, NodeEndpoint, leader_value, node_endpoints_value
from braidlog.wire.primitives import (
    count_of,
    nullable_string,
    pack_i32,
    read_count,
    read_nullable_bytes,
    read_nullable_string,
    read_string,
    read_tags,
    read_uvarint,
    string,
    tags,
    truncated,
)

KEY = 0
VERSIONS = range(3, 14)

FLEXIBLE_FROM = 9
IDS_FROM = 13
"""The first version that names topics by their ids."""
PARTITIONS_MAX = 20_000
"""The limit for one request. Producers send one batch for each partition that has one, within a few megabytes."""
_ACKS_TIMEOUT = Struct(">hi")
_OLD_START = Struct(">hhiih")
"""Null transactional id, acks, timeout, topic count, length of the first topic's name."""
_I32 = Struct(">i")
_INDEX_LENGTH = Struct(">ii")
_COUNT_INDEX_LENGTH = Struct(">iii")
_new = tuple.__new__
"""Takes half the time of a named tuple's own constructor."""


class ProducePartition(NamedTuple):
    partition_index: int
    records: memoryview | None
    """A view into the frame."""


class ProduceTopic(NamedTuple):
    name: str
    """Empty in version 13."""
    topic_id: bytes
    """Empty before version 13."""
    partitions: list[ProducePartition]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class RecordError(NamedTuple):
    """The problem with one record, which is named by its place in its batch."""

    batch_index: int
    message: str | None = None


class ProducedPartition(NamedTuple):
    partition_index: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = ()
    error_message: str | None = None
    current_leader: CurrentLeader = NO_LEADER


class ProducedTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: Sequence[ProducedPartition]


class ProduceResponse(NamedTuple):
    topics: Sequence[ProducedTopic]
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


def read_produce_request(version: int, body: memoryview) -> ProduceRequest:
    """Read the request in `body`, which begins behind the header.

    Records are views into it.

    Bytes behind the request are ignored, as in Kafka.
    """
    try:
        if version >= FLEXIBLE_FROM:
            request, position = _read_flexible(body, version >= IDS_FROM)
        else:
            request, position = _read_old(body)
    except (IndexError, struct.error):
        raise truncated() from None
    if position > len(body):
        raise truncated()
    return request


def _too_many() -> MalformedRequest:
    return MalformedRequest(f"more than {PARTITIONS_MAX} partitions")


def _read_flexible(body: memoryview, by_id: bool) -> tuple[ProduceRequest, int]:
    size = len(body)
    if body[0] == 0:
        transactional_id, position = None, 1
    else:
        transactional_id, position = read_nullable_string(body, 0, True)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, position)
    position += 6
    topic_count = body[position]
    if 0 < topic_count < 0x80:
        topic_count -= 1
        position += 1
    else:
        topic_count, position = read_count(body, position, True)
    topics: list[ProduceTopic] = []
    left = PARTITIONS_MAX
    for _ in range(topic_count):
        name, topic_id = "", b""
        if by_id:
            end = position + 16
            topic_id = bytes(body[position:end])
        else:
            length = body[position]
            end = position + length
            if not 0 < length < 0x80 or end > size:
                name, end = read_string(body, position, True)
            else:
                try:
                    name = str(body[position + 1 : end], "utf-8")
                except UnicodeDecodeError:
                    raise MalformedRequest("the topic's name is not UTF-8") from None
        partition_count = body[end]
        if 0 < partition_count < 0x80:
            partition_count -= 1
            position = end + 1
        else:
            partition_count, position = read_count(body, end, True)
        left -= partition_count or 1
        if left < 0:
            raise _too_many()
        partitions: list[ProducePartition] = []
        for _ in range(partition_count):
            index = _I32.unpack_from(body, position)[0]
            length = body[position + 4]
            if length < 0x80:
                position += 5
            elif body[position + 5] < 0x80:
                length = length & 0x7F | body[position + 5] << 7
                position += 6
            else:
                length, position = read_uvarint(body, position + 4)
            records: memoryview | None = None
            if length:
                end = position + length - 1
                records = body[position:end]
                position = end
            # Indexing also notices records that end behind the body.
            if body[position]:
                position = read_tags(body, position)
            else:
                position += 1
            partitions.append(_new(ProducePartition, (index, records)))
        if body[position]:
            position = read_tags(body, position)
        else:
            position += 1
        topics.append(_new(ProduceTopic, (name, topic_id, partitions)))
    position = read_tags(body, position) if body[position] else position + 1
    return _new(ProduceRequest, (transactional_id, acks, timeout_ms, topics)), position


def _read_old_single(body: memoryview) -> ProduceRequest | None:
    """Read the request of most producers in few steps; None for any other.

    It has no transaction and one partition.
    """
    size = len(body)
    if size < 28:
        return None
    transactional_bytes, acks, timeout_ms, topic_count, name_bytes = _OLD_START.unpack_from(body, 0)
    name_end = 14 + name_bytes
    if transactional_bytes != -1 or topic_count != 1 or name_bytes < 0 or name_end + 12 > size:
        return None
    partition_count, index, length = _COUNT_INDEX_LENGTH.unpack_from(body, name_end)
    if partition_count != 1 or length < 0 or name_end + 12 + length != size:
        return None
    try:
        name = str(body[14:name_end], "utf-8")
    except UnicodeDecodeError:
        return None
    partition = _new(ProducePartition, (index, body[name_end + 12 :]))
    return _new(ProduceRequest, (None, acks, timeout_ms, [_new(ProduceTopic, (name, b"", [partition]))]))


def _read_old(body: memoryview) -> tuple[ProduceRequest, int]:
    size = len(body)
    if (single := _read_old_single(body)) is not None:
        return single, size
    transactional_id, position = read_nullable_string(body, 0, False)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, position)
    topic_count, position = read_count(body, position + 6, False)
    topics: list[ProduceTopic] = []
    left = PARTITIONS_MAX
    for _ in range(topic_count):
        name, position = read_string(body, position, False)
        partition_count, position = read_count(body, position, False)
        left -= partition_count or 1
        if left < 0:
            raise _too_many()
        partitions: list[ProducePartition] = []
        for _ in range(partition_count):
            index, length = _INDEX_LENGTH.unpack_from(body, position)
            end = position + 8 + length
            if length >= 0 and end <= size:
                partitions.append(ProducePartition(index, body[position + 8 : end]))
                position = end
            else:
                records, position = read_nullable_bytes(body, position + 4, False)
                partitions.append(ProducePartition(index, records))
        topics.append(ProduceTopic(name, b"", partitions))
    return _new(ProduceRequest, (transactional_id, acks, timeout_ms, topics)), position


_V3 = Struct(">ihqq")
_V5 = Struct(">ihqqq")
_V8 = Struct(">ihqqqih")
_V9 = Struct(">ihqqqBBB")
_SINGLE_V3 = Struct(">ihqqi")
_SINGLE_V5 = Struct(">ihqqqi")
_SINGLE_V8 = Struct(">ihqqqihi")
_SINGLE_V9 = Struct(">ihqqqBBBBiB")
"""As above, then the topic's tags where there are any, the throttle time, and the response's tags."""


def write_produce_response(version: int, response: ProduceResponse) -> bytes:
    """Write the body of the response."""
    flexible = version >= FLEXIBLE_FROM
    topics, throttle_time_ms, node_endpoints = response
    parts = [count_of(len(topics), flexible)]
    add = parts.append
    for name, topic_id, partitions in topics:
        add(topic_id if version >= IDS_FROM else string(name, flexible))
        add(count_of(len(partitions), flexible))
        for partition in partitions:
            index, error, base_offset, append_ms, start_offset, record_errors, message, leader = partition
            if flexible:
                if not record_errors and message is None and leader == NO_LEADER:
                    add(_V9.pack(index, error, base_offset, append_ms, start_offset, 1, 0, 0))
                else:
                    add(_V5.pack(index, error, base_offset, append_ms, start_offset))
                    add(_record_errors(record_errors, True))
                    add(nullable_string(message, True))
                    add(tags([(0, leader_value(leader))] if version >= 10 and leader != NO_LEADER else []))
            elif version >= 8:
                if not record_errors and message is None:
                    add(_V8.pack(index, error, base_offset, append_ms, start_offset, 0, -1))
                else:
                    add(_V5.pack(index, error, base_offset, append_ms, start_offset))
                    add(_record_errors(record_errors, False))
                    add(nullable_string(message, False))
            elif version >= 5:
                add(_V5.pack(index, error, base_offset, append_ms, start_offset))
            else:
                add(_V3.pack(index, error, base_offset, append_ms))
        if flexible:
            add(b"\x00")
    add(pack_i32(throttle_time_ms))
    if flexible:
        if version >= 10 and node_endpoints:
            add(tags([(0, node_endpoints_value(node_endpoints))]))
        else:
            add(b"\x00")
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _single_start(name: str, topic_id: bytes, version: int) -> bytes:
    """Write one topic with one partition, up to that partition."""
    flexible = version >= FLEXIBLE_FROM
    one = count_of(1, flexible)
    return one + (topic_id if version >= IDS_FROM else string(name, flexible)) + one


def write_single_produced(
    version: int, name: str, topic_id: bytes, index: int, base_offset: int, log_append_time_ms: int, log_start: int
) -> bytes:
    """Write the body of the most frequent response: one partition, without an error."""
    start = _single_start(name, topic_id, version)
    if version >= FLEXIBLE_FROM:
        return start + _SINGLE_V9.pack(index, 0, base_offset, log_append_time_ms, log_start, 1, 0, 0, 0, 0, 0)
    if version >= 8:
        return start + _SINGLE_V8.pack(index, 0, base_offset, log_append_time_ms, log_start, 0, -1, 0)
    if version >= 5:
        return start + _SINGLE_V5.pack(index, 0, base_offset, log_append_time_ms, log_start, 0)
    return start + _SINGLE_V3.pack(index, 0, base_offset, log_append_time_ms, 0)


def _record_errors(record_errors: Sequence[RecordError], flexible: bool) -> bytes:
    parts = [count_of(len(record_errors), flexible)]
    for index, message in record_errors:
        parts += (pack_i32(index), nullable_string(message, flexible))
        if flexible:
            parts.append(b"\x00")
    return b"".join(parts)
