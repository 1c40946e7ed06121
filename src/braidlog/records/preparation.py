"""Prepares a batch for its log.

It checks every record, compresses as the topic says, and corrects the header's times.

The time grows with the size of the decompressed records, so a server does this in a thread.
"""

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from braidlog.records.batch import CODEC_MASK, HEADER_BYTES, BatchHeader, read_header, with_timestamp_ms_max
from braidlog.records.codec import Codec, compress, decompress, decompressed_bytes_bound
from braidlog.records.errors import BadRecords, InvalidBatch, RecordsTooLarge
from braidlog.records.record import assemble_batch
from braidlog.records.record_checks import LISTED_MAX, Checked, Times, check_records

KEY_MISSING = "a compacted topic needs a key in every record"


class LogRules(NamedTuple):
    """The rules of a log for its batches."""

    batch_bytes_max: int
    """The limit of a batch as it is stored."""
    codec: Codec | None = None
    """None keeps the producer's codec."""
    level: int | None = None
    needs_keys: bool = False


def prepare_batch(
    batch: memoryview, header: BatchHeader, rules: LogRules, times: Times, *, expanded_bytes_max: int
) -> tuple[memoryview, BatchHeader]:
    """Check the records of a batch, and return the batch to store.

    Its header and CRC are right.

    `batch` holds this batch alone. Raises `RecordsTooLarge` if its records decompress to more than `expanded_bytes_max`
    (no more than that is allocated), `BadRecords` if single records are to blame, and `InvalidBatch` otherwise. A batch
    that must be compressed again is decompressed only as far as the result could still be within its log's limit.
    """
    if rules.codec is None and not header.attributes & CODEC_MASK:
        # Most batches are like this, and many are small.
        checked = check_records(batch[HEADER_BYTES:], header, times)
        if checked.keyless_count or checked.misdated_count:
            _blame_records(checked, header, rules, times)
        return _with_times(batch, header, checked)
    codec = header.codec if rules.codec is None else rules.codec
    is_kept = codec == header.codec
    packed_bytes_max = max(0, rules.batch_bytes_max - HEADER_BYTES)
    useful_bytes_max = expanded_bytes_max if is_kept else decompressed_bytes_bound(codec, packed_bytes_max)
    packed = batch[HEADER_BYTES : header.total_bytes]
    try:
        payload = decompress(header.codec, packed, bytes_max=min(expanded_bytes_max, useful_bytes_max))
    except RecordsTooLarge:
        if useful_bytes_max < expanded_bytes_max:
            raise _over_limit(codec, rules.batch_bytes_max) from None
        raise
    checked = check_records(payload, header, times)
    _blame_records(checked, header, rules, times)
    if is_kept:
        return _with_times(batch, header, checked)
    try:
        packed = memoryview(compress(codec, payload, level=rules.level, bytes_max=packed_bytes_max))
    except RecordsTooLarge:
        raise _over_limit(codec, rules.batch_bytes_max) from None
    header = header._replace(timestamp_ms_max=checked.timestamp_ms_max)
    again = memoryview(assemble_batch(header, codec, packed))
    return again, read_header(again)


def _with_times(batch: memoryview, header: BatchHeader, checked: Checked) -> tuple[memoryview, BatchHeader]:
    """Return the batch with its records' highest time in the header.

    Some clients leave it out, and readers need it.
    """
    if header.timestamp_ms_max == checked.timestamp_ms_max:
        return batch, header
    fixed = memoryview(with_timestamp_ms_max(batch, header._replace(timestamp_ms_max=checked.timestamp_ms_max)))
    return fixed, read_header(fixed)


def _over_limit(codec: Codec, batch_bytes_max: int) -> InvalidBatch:
    how = "uncompressed" if codec is Codec.NONE else f"compressed with {codec.name.lower()}"
    return InvalidBatch(
        ErrorCode.message_too_large, f"batch, {how} as its topic wants it, is over the limit of {batch_bytes_max}"
    )


def _blame_records(checked: Checked, header: BatchHeader, rules: LogRules, times: Times) -> None:
    if rules.needs_keys and checked.keyless_count:
        message = f"{KEY_MISSING}: {checked.keyless_count} of {header.record_count} have none"
        told = _listed(message, checked.keyless_count)
        raise BadRecords(ErrorCode.invalid_record, told, checked.keyless, KEY_MISSING)
    if checked.misdated_count:
        message = f"the times of {checked.misdated_count} of {header.record_count} records are out of bounds"
        told = _listed(message, checked.misdated_count)
        reason = f"its time is not within {times.ms_min} and {times.ms_max}"
        raise BadRecords(ErrorCode.invalid_timestamp, told, checked.misdated, reason)


def _listed(message: str, count: int) -> str:
    return message if count <= LISTED_MAX else f"{message}; the first {LISTED_MAX} are named"
