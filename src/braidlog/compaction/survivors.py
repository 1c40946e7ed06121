"""Compiled loops that choose the records that stay, and copy them."""

from braidlog.compaction.keymap import AHEAD, SLOTS_IN, Hashes, Slots, find_slot, prefetch_slots
from braidlog.compaction.rules import Treatment
from braidlog.records.compiled import (
    I32_IN,
    I64,
    I64_IN,
    I64_OUT,
    U8_IN,
    U8_OUT,
    Bytes,
    Numbers,
    SmallNumbers,
    compiled,
    copy_bytes,
    i64,
    types,
    u8,
    u64,
)
from braidlog.records.encode_kernel import varint_bytes, write_varint
from braidlog.records.record_kernel import read_varint

REWRITE_BYTES_MAX = 16
"""How much a record may grow when its timestamp delta has another base."""

_TIMESTAMP_MS_MIN = -(1 << 63)
_KEEP, _DISCARD = int(Treatment.KEEP), int(Treatment.DISCARD)


@compiled(
    types.void,
    SLOTS_IN,
    SLOTS_IN,
    I64_IN,
    I64_IN,
    I32_IN,
    U8_IN,
    I32_IN,
    U8_IN,
    U8_IN,
    I64,
    I64,
    U8_OUT,
    I64_OUT,
)
def mark_survivors(
    slots: Slots,
    hashes: Hashes,
    offsets: Numbers,
    timestamps_ms: Numbers,
    places: SmallNumbers,
    is_null: Bytes,
    row_starts: SmallNumbers,
    treatments: Bytes,
    tombstones_may_go: Bytes,
    log_start_offset: int,
    clean_end_offset: int,
    stays: Bytes,
    survivors: Numbers,
) -> None:
    """Mark the records that stay.

    `survivors` gets four numbers for each batch: how many records stay, how many of these are tombstones, their bytes,
    and their highest timestamp.
    """
    for row in range(len(treatments)):
        count = i64(0)
        tombstone_count = i64(0)
        size = i64(0)
        highest_ms = i64(_TIMESTAMP_MS_MIN)
        treatment = treatments[row]
        start, end = i64(row_starts[row]), i64(row_starts[row + 1])
        for index in range(start, end):
            if (index - start) % AHEAD == 0:
                prefetch_slots(slots, hashes, index, end)
            offset = offsets[index]
            if treatment == _KEEP:
                keep = True
            elif treatment == _DISCARD or offset < log_start_offset:
                keep = False
            elif offset >= clean_end_offset:
                keep = True
            elif places[4 * index + 3] < 0 or (is_null[index] != 0 and tombstones_may_go[row] != 0):
                keep = False
            else:
                keep = slots[find_slot(slots, hashes[index, 0], hashes[index, 1]), 2] <= u64(offset + 1)
            stays[index] = keep
            if keep:
                count += 1
                tombstone_count += is_null[index]
                size += i64(places[4 * index + 1]) - i64(places[4 * index])
                highest_ms = max(highest_ms, timestamps_ms[index])
        survivors[4 * row] = count
        survivors[4 * row + 1] = tombstone_count
        survivors[4 * row + 2] = size
        survivors[4 * row + 3] = highest_ms


@compiled(types.void, U8_IN, I32_IN, U8_IN, I64, I64, U8_OUT)
def copy_survivors(data: Bytes, places: SmallNumbers, stays: Bytes, start: int, end: int, out: Bytes) -> None:
    """Copy the records that stay, unchanged. Adjacent records are copied together."""
    at = i64(0)
    index = start
    while index < end:
        if stays[index] == 0:
            index += 1
            continue
        first = i64(places[4 * index])
        while index < end and stays[index] != 0:
            index += 1
        length = i64(places[4 * index - 3]) - first
        copy_bytes(out, at, data, first, length)
        at += length


@compiled(I64, U8_IN, I32_IN, U8_IN, I64, I64, I64, U8_OUT)
def copy_survivors_shifted(
    data: Bytes, places: SmallNumbers, stays: Bytes, start: int, end: int, shift_ms: int, out: Bytes
) -> int:
    """Copy the records that stay, with `shift_ms` added to their timestamp deltas.

    Returns the number of bytes written, or -1 if a delta overflows. A record may grow by `REWRITE_BYTES_MAX`.
    """
    at = i64(0)
    for index in range(start, end):
        if stays[index] == 0:
            continue
        record_end = i64(places[4 * index + 1])
        _, position = read_varint(data, i64(places[4 * index]), record_end)
        attributes = u8(data[position])
        delta_ms, position = read_varint(data, position + 1, record_end)
        shifted_ms = delta_ms + shift_ms
        if (shift_ms > 0 and shifted_ms < delta_ms) or (shift_ms < 0 and shifted_ms > delta_ms):
            return -1
        rest = record_end - position
        at = write_varint(out, at, 1 + varint_bytes(shifted_ms) + rest)
        out[at] = attributes
        at = write_varint(out, at + 1, shifted_ms)
        copy_bytes(out, at, data, position, rest)
        at += rest
    return at
