"""The key map: the latest offset of every key, in bounded memory.

The map holds 128 bits of a seeded hash instead of a key's bytes: 24 bytes per key, however long keys are. Kafka's
cleaner does the same with MD5, for which anyone can make two keys with the same hash. Here that takes the seed.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from braidlog.compaction.limits import FILL_MAX, SLOT_BYTES
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
    inlined,
    prefetch,
    types,
    u64,
)
from braidlog.records.raw import RawRecords
from braidlog.records.siphash import siphash

SEED_BYTES = 16
_SLOTS_MIN = 1024
_SLOTS_MAX = 1 << 31
"""A slot is chosen by 32 bits of the hash."""
_GROWTH = 4

AHEAD = 64
"""How many slots are prefetched at a time."""

Slots = NDArray[np.uint64]
Hashes = NDArray[np.uint64]
SLOTS_IN = types.Array(types.uint64, 2, "C", readonly=True)
_SLOTS_OUT = types.Array(types.uint64, 2, "C")
_BY_KEY = int(Treatment.BY_KEY)


@inlined
def _first_place(slots: Slots, low: int) -> int:
    return i64(((low >> u64(32)) * u64(len(slots))) >> u64(32))


@inlined
def find_slot(slots: Slots, low: int, high: int) -> int:
    """Find the slot of a key, or the empty slot where it would be.

    A slot holds the two halves of the hash, and the offset plus 1.
    """
    place = _first_place(slots, low)
    while slots[place, 2] != u64(0) and (slots[place, 0] != low or slots[place, 1] != high):
        place += 1
        if place == len(slots):
            place = i64(0)
    return place


@inlined
def prefetch_slots(slots: Slots, hashes: Hashes, start: int, end: int) -> None:
    """Prefetch the slots of the next keys.

    Otherwise every key would wait for memory, one after the other.
    """
    for index in range(start, min(start + AHEAD, end)):
        prefetch(slots, _first_place(slots, hashes[index, 0]))


@compiled(types.void, U64, U64, U8_IN, I32_IN, _SLOTS_OUT)
def hash_keys(seed_low: int, seed_high: int, data: Bytes, places: SmallNumbers, hashes: Hashes) -> None:
    """Compute the two halves of the hash of every key that is not null."""
    for index in range(len(hashes)):
        key_length = i64(places[4 * index + 3])
        if key_length >= 0:
            low, high = siphash(seed_low, seed_high, data, i64(places[4 * index + 2]), key_length)
            hashes[index, 0] = low
            hashes[index, 1] = high


@compiled(types.void, SLOTS_IN, _SLOTS_OUT)
def _move_slots(old: Slots, new: Slots) -> None:
    for index in range(len(old)):
        if old[index, 2] != u64(0):
            place = find_slot(new, old[index, 0], old[index, 1])
            new[place, 0] = old[index, 0]
            new[place, 1] = old[index, 1]
            new[place, 2] = old[index, 2]


@compiled(types.UniTuple(I64, 2), _SLOTS_OUT, I64, I64, SLOTS_IN, I64_IN, I32_IN, I32_IN, U8_IN, I64)
def _add_keys(
    slots: Slots,
    count: int,
    count_max: int,
    hashes: Hashes,
    offsets: Numbers,
    places: SmallNumbers,
    row_starts: SmallNumbers,
    treatments: Bytes,
    start_offset: int,
) -> tuple[int, int]:
    """Add the keys of records from `start_offset` on.

    Returns the number of keys, and the first offset that had no room, or -1.
    """
    for row in range(len(treatments)):
        if treatments[row] != _BY_KEY:
            continue
        start, end = i64(row_starts[row]), i64(row_starts[row + 1])
        for index in range(start, end):
            if (index - start) % AHEAD == 0:
                prefetch_slots(slots, hashes, index, end)
            offset = offsets[index]
            if offset < start_offset or places[4 * index + 3] < 0:
                continue
            low, high = hashes[index, 0], hashes[index, 1]
            place = find_slot(slots, low, high)
            if slots[place, 2] == u64(0):
                if count >= count_max:
                    return count, offset
                slots[place, 0] = low
                slots[place, 1] = high
                count += 1
            slots[place, 2] = max(slots[place, 2], u64(offset + 1))
    return count, i64(-1)


@compiled(I64, SLOTS_IN, _SLOTS_OUT, I64)
def _join_slots(entries: Slots, slots: Slots, count: int) -> int:
    """Add the entries of another map. Returns the number of keys."""
    for index in range(len(entries)):
        place = find_slot(slots, entries[index, 0], entries[index, 1])
        if slots[place, 2] == u64(0):
            slots[place, 0] = entries[index, 0]
            slots[place, 1] = entries[index, 1]
            count += 1
        slots[place, 2] = max(slots[place, 2], entries[index, 2])
    return count


class KeyMap:
    """Maps keys to their latest offset, for as many keys as fit into `bytes_max`."""

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

    def entries(self) -> Slots:
        """Return all keys with their latest offsets, one row for each."""
        return np.ascontiguousarray(self._slots[self._slots[:, 2] != 0])

    def join(self, entries: Slots) -> None:
        """Add the entries of another map with the same seed. They must fit."""
        self._grow(self.key_count + len(entries))
        if len(self._slots) * FILL_MAX < self.key_count + len(entries):
            raise ValueError(f"{self.key_count} and {len(entries)} keys do not fit into a key map of this size")
        self.key_count = _join_slots(entries, self._slots, self.key_count)

    def hashes(self, records: RawRecords) -> Hashes:
        """Hash the key of every record that has one."""
        hashes: Hashes = np.zeros((records.count, 2), dtype=np.uint64)
        hash_keys(self._seed_low, self._seed_high, records.opened.payload, records.places, hashes)
        return hashes

    def add(self, records: RawRecords, treatments: Bytes, start_offset: int) -> int | None:
        """Add the keys of the records from `start_offset` on.

        These records follow those added before.

        When the map is full, returns the offset of the first record that had no room. All before it are in the map.
        """
        self._grow(self.key_count + records.count)
        self.key_count, left_out = _add_keys(
            self._slots,
            self.key_count,
            int(len(self._slots) * FILL_MAX),
            self.hashes(records),
            records.offsets,
            records.places,
            records.row_starts,
            treatments,
            start_offset,
        )
        return None if left_out < 0 else left_out

    def _grow(self, key_count: int) -> None:
        """Grow the map for this many keys, within the limit.

        Old and new slots together must fit into it.
        """
        while len(self._slots) * FILL_MAX < key_count:
            old_count = len(self._slots)
            new_count = min(old_count * _GROWTH, self._slots_max - old_count)
            if new_count <= old_count:
                return
            slots: Slots = np.zeros((new_count, 3), dtype=np.uint64)
            _move_slots(self._slots, slots)
            self._slots = slots
