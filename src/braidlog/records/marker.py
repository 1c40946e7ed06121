"""Control batches: the markers that end transactions."""

import struct
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from braidlog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchProducer
from braidlog.records.errors import InvalidBatch
from braidlog.records.record import Record, decode_batch, encode_batch, read_batch

_KEY = Struct(">hh")
"""Version, type."""
_VALUE = Struct(">hi")
"""Version, coordinator epoch."""
_MARKER_BYTES_MAX = 4096


class MarkerType(IntEnum):
    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    type: MarkerType
    offset: int
    timestamp_ms: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


def decode_marker(batch: memoryview) -> Marker | None:
    """Decode the transaction marker of a control batch.

    None for other control records, which readers skip.
    """
    header = read_batch(batch)
    if not header.is_control:
        raise InvalidBatch(ErrorCode.invalid_record, "not a control batch")
    records = decode_batch(batch, bytes_max=_MARKER_BYTES_MAX)
    if len(records) != 1:
        raise InvalidBatch(ErrorCode.invalid_record, f"a control batch of {len(records)} records")
    record = records[0]
    try:
        version, marker_type = _KEY.unpack_from(record.key or b"")
        if version < 0:
            raise InvalidBatch(ErrorCode.invalid_record, f"a control record of version {version}")
        if marker_type not in (MarkerType.ABORT, MarkerType.COMMIT):
            return None
        _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except struct.error:
        raise InvalidBatch(ErrorCode.invalid_record, "a control record is cut off") from None
    return Marker(
        MarkerType(marker_type),
        record.offset,
        record.timestamp_ms,
        header.producer_id,
        header.producer_epoch,
        coordinator_epoch,
    )


def encode_marker(marker: Marker, *, partition_leader_epoch: int = -1) -> bytes:
    """Encode a control batch that holds this marker."""
    record = Record(
        marker.offset, marker.timestamp_ms, _KEY.pack(0, marker.type), _VALUE.pack(0, marker.coordinator_epoch)
    )
    return encode_batch(
        [record],
        base_offset=marker.offset,
        partition_leader_epoch=partition_leader_epoch,
        producer=BatchProducer(marker.producer_id, marker.producer_epoch),
        flags=TRANSACTIONAL_BIT | CONTROL_BIT,
    )
