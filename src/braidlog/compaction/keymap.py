"""The latest offset of every key, in bounded memory.

A key is known by 128 bits of a seeded hash, not by its bytes: 24 bytes for each, however long keys are. Kafka's cleaner
does the same with MD5, to which anyone can make two keys alike; here nobody can who does not know the seed.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from braidlog.compaction.rules import Treatment
from braidlog.records.compiled import (
    I32_IN,
    I64,
    I64_IN,
    U8_IN,
    U64,
    Bytes,
    Numbers,
    SmallNumbers,
    compiled,
    i64,
    types,
    u64,
)
from braidlog.records.raw import RawRecords
from braidlog.records.siphash import siphash

SEED_BYTES = 16
SLOT_BYTES = 24
_SLOTS_MIN = 1024
_SLOTS_MAX = 1 << 31
"""Places are found from 32 bits of the hash."""
_GROWTH = 4
_FILL_MAX = 0.75

Slots = NDArray[np.uint64]
SLOTS_IN = types.Array(types.uint64, 2, "C", readonly=True)
_SLOTS_OUT = types.Array(types.uint64, 2, "C")
_BY_KEY = int(Treatment.BY_KEY)


@compiled(I64, SLOTS_IN, U64, U64)
def find_slot(slots: Slots, low: int, high: int) -> int:
    """The slot of a key, or the empty one where it would be: two halves of the hash, and the offset plus 1."""
    capacity = u64(len(slots))
    place = i64(((low >> u64(32)) * capacity) >> u64(32))
    while slots[place, 2] != u64(0) and (slots[place, 0] != low or slots[place, 1] != high):
        place += 1
        if place == len(slots):
            place = i64(0)
    return place


@compiled(types.void, SLOTS_IN, _SLOTS_OUT)
def _move_slots(old: Slots, new: Slots) -> None:
    for index in range(len(old)):
        if old[index, 2] != u64(0):
            place = find_slot(new, old[index, 0], old[index, 1])
            new[place, 0] = old[index, 0]
            new[place, 1] = old[index, 1]
            new[place, 2] = old[index, 2]


@compiled(types.UniTuple(I64, 2), _SLOTS_OUT, U64, U64, I64, I64, U8_IN, I64_IN, I32_IN, I32_IN, U8_IN, I64)
def _add_keys(
    slots: Slots,
    seed_low: int,
    seed_high: int,
    count: int,
    count_max: int,
    data: Bytes,
    offsets: Numbers,
    places: SmallNumbers,
    row_starts: SmallNumbers,
    treatments: Bytes,
    start_offset: int,
) -> tuple[int, int]:
    """Note the keys of records from `start_offset` on. The number of keys, and the first offset left out or -1."""
    for row in range(len(treatments)):
        if treatments[row] != _BY_KEY:
            continue
        for index in range(row_starts[row], row_starts[row + 1]):
            offset = offsets[index]
            key_length = i64(places[4 * index + 3])
            if offset < start_offset or key_length < 0:
                continue
            low, high = siphash(seed_low, seed_high, data, i64(places[4 * index + 2]), key_length)
            place = find_slot(slots, low, high)
            if slots[place, 2] == u64(0):
                if count >= count_max:
                    return count, offset
                slots[place, 0] = low
                slots[place, 1] = high
                count += 1
            slots[place, 2] = max(slots[place, 2], u64(offset + 1))
    return count, -1


class KeyMap:
    """Key → latest offset, for as many keys as fit into `bytes_max`."""

    def __init__(self, *, bytes_max: int, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"the seed has {len(seed)} bytes, not {SEED_BYTES}")
        self._slots_max = min(bytes_max // SLOT_BYTES, _SLOTS_MAX)
        if self._slots_max < _SLOTS_MIN:
            raise ValueError(f"{bytes_max} bytes are too few; {_SLOTS_MIN * SLOT_BYTES} is the least")
        self._slots: Slots = np.zeros((_SLOTS_MIN, 3), dtype=np.uint64)
        self._seed_low: Any = np.uint64(int.from_bytes(seed[:8], "little"))
        self._seed_high: Any = np.uint64(int.from_bytes(seed[8:], "little"))
        self.key_count = 0

    @property
    def size_bytes(self) -> int:
        return len(self._slots) * SLOT_BYTES

    @property
    def slots(self) -> Slots:
        return self._slots

    @property
    def seed(self) -> tuple[Any, Any]:
        """As compiled code takes it."""
        return self._seed_low, self._seed_high

    def add(self, records: RawRecords, treatments: Bytes, start_offset: int) -> int | None:
        """Note the keys of the records from `start_offset` on, which follow those noted before.

        Once the map is full, the offset of the first record that it has no room for: all before it are in the map.
        """
        self._grow(self.key_count + records.count)
        self.key_count, left_out = _add_keys(
            self._slots,
            self._seed_low,
            self._seed_high,
            self.key_count,
            int(len(self._slots) * _FILL_MAX),
            records.opened.payload,
            records.offsets,
            records.places,
            records.row_starts,
            treatments,
            start_offset,
        )
        return None if left_out < 0 else left_out

    def _grow(self, key_count: int) -> None:
        """Make room for so many keys, as far as the old slots and the new ones together fit into the limit."""
        while len(self._slots) * _FILL_MAX < key_count:
            old_count = len(self._slots)
            new_count = min(old_count * _GROWTH, self._slots_max - old_count)
            if new_count <= old_count:
                return
            slots: Slots = np.zeros((new_count, 3), dtype=np.uint64)
            _move_slots(self._slots, slots)
            self._slots = slots
