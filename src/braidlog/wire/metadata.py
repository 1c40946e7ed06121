"""Metadata, versions 0 to 13, by hand: large clusters make large answers.

Version 1 adds racks, the controller and internal topics, 2 the cluster id, 3 throttling, 4 the choice not to create
topics, 5 offline replicas, 7 leader epochs, 8 authorized operations, 9 is flexible, 10 adds topic ids, 13 an error.
"""

import struct
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from braidlog.wire.errors import MalformedRequest
from braidlog.wire.primitives import (
    ELEMENTS_MAX,
    NO_TOPIC_ID,
    count_of,
    i32_array,
    nullable_string,
    pack_i16,
    pack_i32,
    read_bool,
    read_nullable_count,
    read_nullable_string,
    read_string,
    read_tags,
    read_uuid,
    string,
    truncated,
)

KEY = 3
VERSIONS = range(14)

_FLEXIBLE_FROM = 9
OPERATIONS_UNKNOWN = -(1 << 31)
"""Authorized operations that were not asked for."""


class MetadataTopicRequest(NamedTuple):
    name: str | None
    """Null, from version 10 on, where the topic is named by its id."""
    topic_id: bytes = NO_TOPIC_ID


class MetadataRequest(NamedTuple):
    topics: list[MetadataTopicRequest] | None
    """None for all topics."""
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False


class MetadataBroker(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class MetadataPartition(NamedTuple):
    partition_index: int
    leader_id: int
    replica_nodes: tuple[int, ...] = ()
    isr_nodes: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()
    leader_epoch: int = -1
    error_code: int = 0


class MetadataTopic(NamedTuple):
    name: str | None
    """None only for an unknown topic id, from version 12 on; older versions see an empty name."""
    topic_id: bytes = NO_TOPIC_ID
    partitions: Sequence[MetadataPartition] = ()
    error_code: int = 0
    is_internal: bool = False
    authorized_operations: int = OPERATIONS_UNKNOWN


class MetadataResponse(NamedTuple):
    brokers: Sequence[MetadataBroker]
    topics: Sequence[MetadataTopic]
    cluster_id: str | None = None
    controller_id: int = -1
    throttle_time_ms: int = 0
    cluster_authorized_operations: int = OPERATIONS_UNKNOWN
    error_code: int = 0


def read_metadata_request(version: int, body: memoryview) -> MetadataRequest:
    """Read the request in `body`, which begins behind the header.

    Bytes that are left over are ignored: librdkafka writes a null list of topics as four bytes where one is due, so
    its request for all topics is three bytes too long.
    """
    try:
        return _read(version, body)
    except (IndexError, struct.error):
        raise truncated() from None


def _read(version: int, body: memoryview) -> MetadataRequest:
    flexible = version >= _FLEXIBLE_FROM
    count, position = read_nullable_count(body, 0, flexible)
    if count is not None and count > ELEMENTS_MAX:
        raise MalformedRequest(f"more than {ELEMENTS_MAX} topics")
    topics: list[MetadataTopicRequest] | None = None
    if count is not None:
        topics = []
        for _ in range(count):
            topic_id = NO_TOPIC_ID
            name: str | None
            if version >= 10:
                topic_id, position = read_uuid(body, position)
                name, position = read_nullable_string(body, position, True)
            else:
                name, position = read_string(body, position, flexible)
            if flexible:
                position = read_tags(body, position)
            topics.append(MetadataTopicRequest(name, topic_id))
        if version == 0 and not topics:
            # Version 0 has no null: an empty list asks for everything.
            topics = None
    elif version == 0:
        raise MalformedRequest("null where an array must be")
    creation, cluster_operations, topic_operations = True, False, False
    if version >= 4:
        creation, position = read_bool(body, position)
    if 8 <= version <= 10:
        cluster_operations, position = read_bool(body, position)
    if version >= 8:
        topic_operations, position = read_bool(body, position)
    if flexible:
        read_tags(body, position)
    return MetadataRequest(topics, creation, cluster_operations, topic_operations)


_PARTITION_V0 = Struct(">hii")
_PARTITION_V7 = Struct(">hiii")


class MetadataWriter:
    """Writes a response in pieces, because it may be too large to write in one go."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._flexible = version >= _FLEXIBLE_FROM
        # Most partitions of a cluster have one of a few sets of replicas: encode each set once.
        self._partition_tails: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], bytes] = {}

    def head(self, response: MetadataResponse, topic_count: int) -> bytes:
        """Write all that comes before the first topic."""
        version, flexible = self._version, self._flexible
        parts: list[bytes] = []
        if version >= 3:
            parts.append(pack_i32(response.throttle_time_ms))
        parts.append(count_of(len(response.brokers), flexible))
        for node_id, host, port, rack in response.brokers:
            parts += (pack_i32(node_id), string(host, flexible), pack_i32(port))
            if version >= 1:
                parts.append(nullable_string(rack, flexible))
            if flexible:
                parts.append(b"\x00")
        if version >= 2:
            parts.append(nullable_string(response.cluster_id, flexible))
        if version >= 1:
            parts.append(pack_i32(response.controller_id))
        parts.append(count_of(topic_count, flexible))
        return b"".join(parts)

    def topic_head(self, topic: MetadataTopic, partition_count: int) -> bytes:
        """Write all that comes before the topic's first partition."""
        version, flexible = self._version, self._flexible
        parts = [
            pack_i16(topic.error_code),
            nullable_string(topic.name, flexible) if version >= 12 else string(topic.name or "", flexible),
        ]
        if version >= 10:
            parts.append(topic.topic_id)
        if version >= 1:
            parts.append(b"\x01" if topic.is_internal else b"\x00")
        parts.append(count_of(partition_count, flexible))
        return b"".join(parts)

    def partitions(self, partitions: Iterable[MetadataPartition]) -> bytes:
        """Write some partitions of a topic; others may follow."""
        parts: list[bytes] = []
        add = parts.append
        tails = self._partition_tails
        for index, leader_id, replicas, isr, offline, leader_epoch, partition_error in partitions:
            if self._version >= 7:
                add(_PARTITION_V7.pack(partition_error, index, leader_id, leader_epoch))
            else:
                add(_PARTITION_V0.pack(partition_error, index, leader_id))
            tail_key = (replicas, isr, offline)
            tail = tails.get(tail_key)
            if tail is None:
                tail = tails[tail_key] = _partition_tail(self._version, replicas, isr, offline)
            add(tail)
        return b"".join(parts)

    def topic_tail(self, authorized_operations: int) -> bytes:
        """Write all that comes behind the topic's last partition."""
        operations = pack_i32(authorized_operations) if self._version >= 8 else b""
        return operations + b"\x00" if self._flexible else operations

    def tail(self, response: MetadataResponse) -> bytes:
        """Write all that comes behind the last topic."""
        parts: list[bytes] = []
        if 8 <= self._version <= 10:
            parts.append(pack_i32(response.cluster_authorized_operations))
        if self._version >= 13:
            parts.append(pack_i16(response.error_code))
        if self._flexible:
            parts.append(b"\x00")
        return b"".join(parts)


def _partition_tail(version: int, replicas: Sequence[int], isr: Sequence[int], offline: Sequence[int]) -> bytes:
    flexible = version >= _FLEXIBLE_FROM
    tail = i32_array(replicas, flexible) + i32_array(isr, flexible)
    if version >= 5:
        tail += i32_array(offline, flexible)
    return tail + b"\x00" if flexible else tail
