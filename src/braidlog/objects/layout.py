"""What an object's footer says. Persisted: the order of the fields is the format, so keep it stable.

The structs are msgpack arrays. The byte layout around them is documented in `braidlog.objects.format`.
"""

import msgspec

KAFKA_BATCHES = 0
"""Payload of an extent: Kafka record batches, version 2, back to back."""
ARROW_STREAM = 1
"""Payload of an extent: one Arrow IPC stream."""


class BatchEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One record batch inside an extent: what the sequencer must know of it, with nothing else at hand."""

    length: int
    offset_count: int
    """How many offsets the batch takes: its last offset delta plus one."""
    attributes: int
    """The batch's attribute bits: compression, timestamp type, transactional, control."""
    timestamp_ms_max: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1


class ExtentEntry(msgspec.Struct, array_like=True, frozen=True):
    """A run of records for one partition: bytes [position, position + length) of the object."""

    topic_id: bytes
    partition: int
    position: int
    length: int
    record_count: int
    timestamp_ms_min: int
    timestamp_ms_max: int
    payload: int
    batches: list[BatchEntry]


class Footer(msgspec.Struct, array_like=True, frozen=True):
    """All of an object's extents, ordered by topic id and partition."""

    nonce: bytes
    """16 random bytes: the object's identity. Also in the trailer, so that a writer can recognise its own object."""
    write_epoch: int
    incarnation: str
    """Random name of the process that wrote it."""
    created_ms: int
    zone: str
    extents: list[ExtentEntry]
