"""Fetch, versions 4 to 18, by hand.

Responses are lists of buffers, so that record bytes are never copied.

Version 5 adds the log start offset, 7 sessions, 9 the leader epoch, 11 racks and preferred replicas, 12 is flexible,
13 names topics by their ids, 15 moves the replica id into a tagged field, 16 adds node endpoints.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from braidlog.wire.errors import MalformedRequest
from braidlog.wire.nodes import NO_LEADER, CurrentLeader, NodeEndpoint, leader_value, node_endpoints_value
from braidlog.wire.primitives import (
    ELEMENTS_MAX,
    UUID_BYTES,
    Bytes,
    count_of,
    pack_i32,
    read_count,
    read_i32_array,
    read_nullable_string,
    read_string,
    read_tags,
    read_uuid,
    string,
    tags,
    truncated,
    uvarint,
)

KEY = 1
VERSIONS = range(4, 19)

_FLEXIBLE_FROM = 12
_TOPIC_IDS_FROM = 13

_START_V4 = Struct(">iiiib")
_START_V7 = Struct(">iiiibii")
_START_V15 = Struct(">iiibii")
_REPLICA_STATE = Struct(">iq")
_PARTITION_V4 = Struct(">iqi")
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")
_PARTITION_V12 = Struct(">iiqiqi")
_PARTITION_BYTES = _PARTITION_V12.size + 1
"""The size of a partition, which has no tags."""
_new = tuple.__new__
"""Takes half the time of a named tuple's own constructor."""


class FetchPartition(NamedTuple):
    partition_index: int
    fetch_offset: int
    bytes_max: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


class FetchTopic(NamedTuple):
    name: str
    """Empty from version 13 on."""
    topic_id: bytes
    """Empty before version 13."""
    partitions: list[FetchPartition]


class ForgottenTopic(NamedTuple):
    """Partitions that leave a fetch session."""

    name: str
    topic_id: bytes
    partitions: list[int]


class FetchRequest(NamedTuple):
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    """0 reads everything, 1 what is committed."""
    session_id: int
    session_epoch: int
    topics: list[FetchTopic]
    forgotten_topics: list[ForgottenTopic]
    rack_id: str
    replica_id: int
    """-1 for consumers."""
    replica_epoch: int
    cluster_id: str | None


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int


class EpochEndOffset(NamedTuple):
    epoch: int = -1
    end_offset: int = -1


class SnapshotId(NamedTuple):
    end_offset: int = -1
    epoch: int = -1


NO_DIVERGENCE = EpochEndOffset()
NO_SNAPSHOT = SnapshotId()


class FetchedPartition(NamedTuple):
    partition_index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: int = -1
    records: Sequence[Bytes] | None = ()
    """Whole batches, already patched. The buffers are passed on as they are."""
    diverging_epoch: EpochEndOffset = NO_DIVERGENCE
    current_leader: CurrentLeader = NO_LEADER
    snapshot_id: SnapshotId = NO_SNAPSHOT

    @property
    def is_plain(self) -> bool:
        """Whether the partition holds nothing but the fields that all have."""
        return (
            not self.aborted_transactions
            and self.diverging_epoch is NO_DIVERGENCE
            and self.current_leader is NO_LEADER
            and self.snapshot_id is NO_SNAPSHOT
        )


class FetchedTopic(NamedTuple):
    name: str
    topic_id: bytes
    partitions: Sequence[FetchedPartition]


class FetchResponse(NamedTuple):
    topics: Sequence[FetchedTopic]
    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


def read_fetch_request(version: int, body: memoryview) -> FetchRequest:
    """Read the request in `body`, which begins behind the header.

    A follower's directory id and high watermark are skipped: only brokers that replicate send them. Bytes behind the
    request are ignored, as in Kafka.
    """
    try:
        request, position = _read(version, body)
    except (IndexError, struct.error):
        raise truncated() from None
    if position > len(body):
        raise truncated()
    return request


def _read(version: int, body: memoryview) -> tuple[FetchRequest, int]:
    flexible = version >= _FLEXIBLE_FROM
    replica_id = replica_epoch = session_epoch = -1
    session_id = 0
    cluster_id: str | None = None
    if version >= 15:
        wait_ms, bytes_min, bytes_max, isolation, session_id, session_epoch = _START_V15.unpack_from(body, 0)
        position = _START_V15.size
    elif version >= 7:
        replica_id, wait_ms, bytes_min, bytes_max, isolation, session_id, session_epoch = _START_V7.unpack_from(body, 0)
        position = _START_V7.size
    else:
        replica_id, wait_ms, bytes_min, bytes_max, isolation = _START_V4.unpack_from(body, 0)
        position = _START_V4.size

    topic_count, position = read_count(body, position, flexible)
    topics: list[FetchTopic] = []
    left = ELEMENTS_MAX
    for _ in range(topic_count):
        name, topic_id, position = _read_topic(version, body, position)
        partition_count, position = read_count(body, position, flexible)
        left -= 1 + partition_count
        if left < 0:
            raise MalformedRequest(f"more than {ELEMENTS_MAX} elements")
        if flexible:
            partitions, position = _read_flexible_partitions(body, position, partition_count)
            position = position + 1 if not body[position] else read_tags(body, position)
        else:
            partitions, position = _read_old_partitions(version, body, position, partition_count)
        topics.append(_new(FetchTopic, (name, topic_id, partitions)))

    forgotten: list[ForgottenTopic] = []
    if version >= 7:
        forgotten_count, position = read_count(body, position, flexible)
        for _ in range(forgotten_count):
            name, topic_id, position = _read_topic(version, body, position)
            indexes, position = read_i32_array(body, position, flexible)
            left -= 1 + len(indexes)
            if left < 0:
                raise MalformedRequest(f"more than {ELEMENTS_MAX} elements")
            forgotten.append(ForgottenTopic(name, topic_id, indexes))
            if flexible:
                position = read_tags(body, position)
    rack_id = ""
    if version >= 11:
        rack_id, position = read_string(body, position, flexible)
    if flexible:
        if body[position]:
            found: dict[int, memoryview] = {}
            position = read_tags(body, position, found.__setitem__)
            if 0 in found:
                cluster_id = read_nullable_string(found[0], 0, True)[0]
            if version >= 15 and 1 in found:
                replica_id, replica_epoch = _REPLICA_STATE.unpack_from(found[1], 0)
        else:
            position += 1
    request = FetchRequest(
        wait_ms,
        bytes_min,
        bytes_max,
        isolation,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
        replica_id,
        replica_epoch,
        cluster_id,
    )
    return request, position


def without_repeats(request: FetchRequest) -> FetchRequest:
    """The request with each partition once, as Kafka takes it.

    It is in its first place, and as it was asked for last.
    """
    wanted: dict[tuple[str, bytes], dict[int, FetchPartition]] = {}
    for name, topic_id, partitions in request.topics:
        wanted.setdefault((name, topic_id), {}).update({each.partition_index: each for each in partitions})
    return request._replace(topics=[FetchTopic(*topic, list(found.values())) for topic, found in wanted.items()])


def in_slices(topics: Iterable[FetchTopic], length: int) -> Iterator[list[FetchTopic]]:
    """The topics in parts that have `length` partitions each, but for the last."""
    part: list[FetchTopic] = []
    room = length
    for name, topic_id, partitions in topics:
        start = 0
        while start < len(partitions):
            taken = partitions[start : start + room]
            part.append(FetchTopic(name, topic_id, taken))
            start += len(taken)
            room -= len(taken)
            if not room:
                yield part
                part, room = [], length
    if part:
        yield part


def turning_partitions(version: int, body: memoryview, request: FetchRequest) -> range | None:
    """Where in `body` each partition begins, if they may take turns there.

    A consumer without a session names the same ones again and again, each in turn at the head, lest the first get all
    the room. None where it has several topics, or is not built as consumers build it.
    """
    if version < 15 or len(request.topics) != 1:
        return None
    count = len(request.topics[0].partitions)
    start = _START_V15.size + 1 + UUID_BYTES + 1
    end = start + count * _PARTITION_BYTES
    # One byte each: no tags of the topic, no forgotten topics, no rack, no tags. No request with as many partitions is
    # shorter, so one of this length holds nothing else, and all its partitions are of one size.
    if not 1 < count < 127 or len(body) != end + 4:
        return None
    return range(start, end, _PARTITION_BYTES)


def _read_topic(version: int, body: memoryview, position: int) -> tuple[str, bytes, int]:
    if version >= _TOPIC_IDS_FROM:
        topic_id, position = read_uuid(body, position)
        return "", topic_id, position
    name, position = read_string(body, position, version >= _FLEXIBLE_FROM)
    return name, b"", position


def _read_flexible_partitions(body: memoryview, position: int, count: int) -> tuple[list[FetchPartition], int]:
    partitions: list[FetchPartition] = []
    for _ in range(count):
        index, leader_epoch, offset, fetched_epoch, start_offset, bytes_max = _PARTITION_V12.unpack_from(body, position)
        position += 32
        position = position + 1 if not body[position] else read_tags(body, position)
        fields = (index, offset, bytes_max, leader_epoch, fetched_epoch, start_offset)
        partitions.append(_new(FetchPartition, fields))
    return partitions, position


def _read_old_partitions(version: int, body: memoryview, position: int, count: int) -> tuple[list[FetchPartition], int]:
    partitions: list[FetchPartition] = []
    leader_epoch = start_offset = -1
    for _ in range(count):
        if version >= 9:
            index, leader_epoch, offset, start_offset, bytes_max = _PARTITION_V9.unpack_from(body, position)
            position += _PARTITION_V9.size
        elif version >= 5:
            index, offset, start_offset, bytes_max = _PARTITION_V5.unpack_from(body, position)
            position += _PARTITION_V5.size
        else:
            index, offset, bytes_max = _PARTITION_V4.unpack_from(body, position)
            position += _PARTITION_V4.size
        partitions.append(FetchPartition(index, offset, bytes_max, leader_epoch, -1, start_offset))
    return partitions, position


_RESPONSE_V7 = Struct(">ihi")
_DATA_V4 = Struct(">ihqq")
_DATA_V5 = Struct(">ihqqq")
_ABORTED = Struct(">qq")
_EMPTY_V12 = Struct(">ihqqqBiBB")
"""Up to the start offset; aborted transactions, preferred replica and records, all of them none; no tags."""
_EPOCH_END = Struct(">iqB")
_SNAPSHOT = Struct(">qiB")


def write_fetch_response(version: int, response: FetchResponse) -> list[Bytes]:
    """Write the body of the response, as buffers to be sent one after the other."""
    flexible = version >= _FLEXIBLE_FROM
    topics, throttle_time_ms, error_code, session_id, node_endpoints = response
    buffers: list[Bytes] = []
    start = _RESPONSE_V7.pack(throttle_time_ms, error_code, session_id) if version >= 7 else pack_i32(throttle_time_ms)
    # Everything but records is gathered here until records come, so that the list stays short.
    small: list[bytes] = [start, count_of(len(topics), flexible)]
    for name, topic_id, partitions in topics:
        small.append(topic_id if version >= _TOPIC_IDS_FROM else string(name, flexible))
        small.append(count_of(len(partitions), flexible))
        for partition in partitions:
            if flexible and not partition.records and partition.is_plain:
                small.append(_plain_empty(partition))
                continue
            _add_partition_start(version, partition, small)
            records = partition.records
            if records is None:
                small.append(b"\x00" if flexible else b"\xff\xff\xff\xff")
            else:
                length = sum(map(len, records))
                small.append(uvarint(length + 1) if flexible else pack_i32(length))
                if length:
                    buffers.append(b"".join(small))
                    small = []
                    buffers += records
            if flexible:
                small.append(_partition_tags(partition))
        if flexible:
            small.append(b"\x00")
    if flexible:
        if version >= 16 and node_endpoints:
            small.append(tags([(0, node_endpoints_value(node_endpoints))]))
        else:
            small.append(b"\x00")
    if small:
        buffers.append(b"".join(small))
    return buffers


def _plain_empty(partition: FetchedPartition) -> bytes:
    """Write a partition without records in one piece.

    Most are such while consumers wait.
    """
    index, error_code, high_watermark, stable_offset, start_offset, aborted, preferred_replica, records, *_ = partition
    return _EMPTY_V12.pack(
        index,
        error_code,
        high_watermark,
        stable_offset,
        start_offset,
        0 if aborted is None else 1,
        preferred_replica,
        0 if records is None else 1,
        0,
    )


def _add_partition_start(version: int, partition: FetchedPartition, parts: list[bytes]) -> None:
    index, error_code, high_watermark, stable_offset, start_offset, aborted, preferred_replica, *_ = partition
    flexible = version >= _FLEXIBLE_FROM
    if version >= 5:
        parts.append(_DATA_V5.pack(index, error_code, high_watermark, stable_offset, start_offset))
    else:
        parts.append(_DATA_V4.pack(index, error_code, high_watermark, stable_offset))
    if aborted is None:
        parts.append(b"\x00" if flexible else b"\xff\xff\xff\xff")
    else:
        parts.append(count_of(len(aborted), flexible))
        for producer_id, first_offset in aborted:
            parts.append(_ABORTED.pack(producer_id, first_offset))
            if flexible:
                parts.append(b"\x00")
    if version >= 11:
        parts.append(pack_i32(preferred_replica))


def _partition_tags(partition: FetchedPartition) -> bytes:
    diverging, leader, snapshot = partition[8:]
    if diverging is NO_DIVERGENCE and leader is NO_LEADER and snapshot is NO_SNAPSHOT:
        return b"\x00"
    fields: list[tuple[int, bytes]] = []
    if diverging != NO_DIVERGENCE:
        fields.append((0, _EPOCH_END.pack(diverging[0], diverging[1], 0)))
    if leader != NO_LEADER:
        fields.append((1, leader_value(leader)))
    if snapshot != NO_SNAPSHOT:
        fields.append((2, _SNAPSHOT.pack(snapshot[0], snapshot[1], 0)))
    return tags(fields)
