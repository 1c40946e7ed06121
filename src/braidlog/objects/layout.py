"""The content of an object's footer.

Persisted: the order of the fields is the format, so keep it stable.

The structs are msgpack arrays. The byte layout around them is documented in `braidlog.objects.format`. The ranges are
checked when bytes are decoded, by msgspec, because that takes a tenth of the time it would take here.
"""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from braidlog.runtime.limits import (
    EXTENTS_PER_OBJECT_MAX,
    OBJECT_BYTES_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    RECORDS_PER_BATCH_MAX,
)

KAFKA_BATCHES = 0
"""Payload of an extent: Kafka record batches, version 2, back to back."""
ARROW_STREAM = 1
"""Payload of an extent: one Arrow IPC stream."""

ADDS_PARTITION_BIT = 0x4000
"""Set in a batch's attributes here, never in the batch itself: the partition of this transactional batch need not have
been added to its transaction before."""

SEQUENCE_END = 1 << 31
"""Idempotent producers number their records from 0 up to this, exclusive, and then from 0 again."""

NEW_RECORDS, MERGED, COMPACTED = 0, 1, 2
"""The kinds of objects. Merged and compacted ones hold records that have offsets already."""

NONCE_BYTES = 16
TOPIC_ID_BYTES = 16

_Identity: TypeAlias = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_TopicId: TypeAlias = Annotated[bytes, Meta(min_length=TOPIC_ID_BYTES, max_length=TOPIC_ID_BYTES)]
_Length: TypeAlias = Annotated[int, Meta(ge=1, le=OBJECT_BYTES_MAX)]
_Milliseconds: TypeAlias = Annotated[int, Meta(le=2**63 - 1)]  # msgpack has nothing below -2**63


class BatchEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One record batch inside an extent, with all that the sequencer must know of it."""

    length: _Length
    offset_count: Annotated[int, Meta(ge=1, le=RECORDS_PER_BATCH_MAX)]
    """How many offsets the batch takes: its last offset delta plus one."""
    attributes: Annotated[int, Meta(ge=-(2**15), lt=2**15)]
    """The batch's attribute bits: compression, timestamp type, transactional, control; and `ADDS_PARTITION_BIT`."""
    timestamp_ms_max: _Milliseconds
    producer_id: Annotated[int, Meta(ge=-1, le=2**63 - 1)] = -1
    producer_epoch: Annotated[int, Meta(ge=-1, lt=2**15)] = -1
    base_sequence: Annotated[int, Meta(ge=-1, lt=SEQUENCE_END)] = -1


class ExtentEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The records of one partition in an object.

    They are bytes [position, position + length) of the object.
    """

    topic_id: _TopicId
    partition: Annotated[int, Meta(ge=0, lt=PARTITIONS_PER_TOPIC_MAX)]
    position: Annotated[int, Meta(ge=0, le=OBJECT_BYTES_MAX)]
    length: _Length
    record_count: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    timestamp_ms_min: _Milliseconds
    timestamp_ms_max: _Milliseconds
    payload: Annotated[int, Meta(ge=KAFKA_BATCHES, le=ARROW_STREAM)]
    batches: list[BatchEntry]


class RewrittenExtent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The offsets [base_offset, end_offset) that a rewritten extent replaces."""

    base_offset: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    end_offset: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    generation: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """The generation of the partition's index for which it was written."""


class Footer(msgspec.Struct, array_like=True, frozen=True):
    """All of an object's extents, ordered by topic id and partition."""

    nonce: _Identity
    """16 random bytes: the object's identity. Also in the trailer, so that a writer can recognise its own object."""
    write_epoch: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    incarnation: Annotated[str, Meta(min_length=1, max_length=255)]
    """The random name of the process that wrote the object."""
    created_ms: _Milliseconds
    zone: Annotated[str, Meta(max_length=255)]
    extents: Annotated[list[ExtentEntry], Meta(max_length=EXTENTS_PER_OBJECT_MAX)]
    kind: Annotated[int, Meta(ge=NEW_RECORDS, le=2**15)] = NEW_RECORDS
    """`NEW_RECORDS`, `MERGED` or `COMPACTED`. Only new records may ever be appended to a log. Footers of the first
    release end before this field."""
    rewritten: list[RewrittenExtent] = []
    """For each extent of a merged or compacted object, what it replaces."""
