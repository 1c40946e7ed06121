"""Metadata, versions 0 to 13, by hand: large clusters make large answers.

Version 1 adds racks, the controller and internal topics, 2 the cluster id, 3 throttling, 4 the choice not to create
topics, 5 offline replicas, 7 leader epochs, 8 authorized operations, 9 is flexible, 10 adds topic ids, 13 an error.
"""

import struct
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from braidlog.wire.errors import MalformedRequest
from braidlog.wire.primitives import (
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
    """The request in `body`, which begins behind the header.

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


def write_metadata_response(version: int, response: MetadataResponse) -> bytes:
    """The body of the response."""
    flexible = version >= _FLEXIBLE_FROM
    parts: list[bytes] = []
    add = parts.append
    if version >= 3:
        add(pack_i32(response.throttle_time_ms))
    add(count_of(len(response.brokers), flexible))
    for node_id, host, port, rack in response.brokers:
        parts += (pack_i32(node_id), string(host, flexible), pack_i32(port))
        if version >= 1:
            add(nullable_string(rack, flexible))
        if flexible:
            add(b"\x00")
    if version >= 2:
        add(nullable_string(response.cluster_id, flexible))
    if version >= 1:
        add(pack_i32(response.controller_id))
    add(count_of(len(response.topics), flexible))
    # Most partitions of a cluster have one of a few sets of replicas: encode each set once.
    tails: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], bytes] = {}
    for name, topic_id, partitions, error_code, is_internal, operations in response.topics:
        add(pack_i16(error_code))
        add(nullable_string(name, flexible) if version >= 12 else string(name or "", flexible))
        if version >= 10:
            add(topic_id)
        if version >= 1:
            add(b"\x01" if is_internal else b"\x00")
        add(count_of(len(partitions), flexible))
        for index, leader_id, replicas, isr, offline, leader_epoch, partition_error in partitions:
            if version >= 7:
                add(_PARTITION_V7.pack(partition_error, index, leader_id, leader_epoch))
            else:
                add(_PARTITION_V0.pack(partition_error, index, leader_id))
            tail_key = (replicas, isr, offline)
            tail = tails.get(tail_key)
            if tail is None:
                tail = tails[tail_key] = _partition_tail(version, replicas, isr, offline)
            add(tail)
        if version >= 8:
            add(pack_i32(operations))
        if flexible:
            add(b"\x00")
    if 8 <= version <= 10:
        add(pack_i32(response.cluster_authorized_operations))
    if version >= 13:
        add(pack_i16(response.error_code))
    if flexible:
        add(b"\x00")
    return b"".join(parts)


def _partition_tail(version: int, replicas: Sequence[int], isr: Sequence[int], offline: Sequence[int]) -> bytes:
    flexible = version >= _FLEXIBLE_FROM
    tail = i32_array(replicas, flexible) + i32_array(isr, flexible)
    if version >= 5:
        tail += i32_array(offline, flexible)
    return tail + b"\x00" if flexible else tail
