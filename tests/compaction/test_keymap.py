"""The key map: exact, growing, and within its bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records.siphash_reference import siphash_128

from braidlog.compaction.keymap import SLOT_BYTES, KeyMap, hash_keys
from braidlog.records.opened_extents import ExtentBytes, open_extents
from braidlog.records.raw import RawRecords, index_opened
from braidlog.records.record import Record, encode_batch

SEED = bytes(range(16))


def raw_records(keys: list[bytes | None], base_offset: int = 0) -> RawRecords:
    batch = encode_batch([Record(at, 0, key, b"v") for at, key in enumerate(keys)])
    [opened] = open_extents([ExtentBytes(base_offset, batch)], select=lambda table: table)
    return index_opened(opened)


def treatments(records: RawRecords) -> np.ndarray:
    return np.zeros(len(records.opened.table), dtype=np.uint8)


def offsets_in(key_map: KeyMap) -> dict[tuple[int, int], int]:
    return {(int(low), int(high)): int(end) - 1 for low, high, end in key_map.slots if end}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=3_000), st.integers(0, 10**12))
def test_the_latest_offset_of_every_key(keys: list[bytes | None], base_offset: int) -> None:
    key_map = KeyMap(bytes_max=1_000_000, seed=SEED)
    expected: dict[tuple[int, int], int] = {}
    for start in range(0, len(keys), 700):
        some = keys[start : start + 700]
        records = raw_records(some, base_offset + start)
        assert key_map.add(records, treatments(records), 0) is None
        for at, key in enumerate(some):
            if key is not None:
                expected[siphash_128(SEED, key, 1, 3)] = base_offset + start + at
    assert offsets_in(key_map) == expected
    assert key_map.key_count == len(expected)


@pytest.mark.parametrize("bytes_max", [24 * 1024, 100_000, 1_000_000])
def test_a_full_map_says_where_and_stays_within_its_bytes(bytes_max: int) -> None:
    key_map = KeyMap(bytes_max=bytes_max, seed=SEED)
    left_out = None
    start = 0
    while left_out is None:
        records = raw_records([b"%d" % at for at in range(start, start + 1_000)], start)
        left_out = key_map.add(records, treatments(records), 0)
        assert key_map.size_bytes <= bytes_max
        start += 1_000
    assert key_map.key_count == left_out
    assert left_out * SLOT_BYTES >= bytes_max * 0.35
    assert sorted(offsets_in(key_map).values()) == list(range(left_out))


def test_records_that_were_compacted_before_are_not_noted() -> None:
    key_map = KeyMap(bytes_max=1_000_000, seed=SEED)
    records = raw_records([b"a", b"b", b"c"])
    key_map.add(records, treatments(records), 2)
    assert sorted(offsets_in(key_map).values()) == [2]


def test_other_seeds_give_other_hashes() -> None:
    records = raw_records([b"a", b"b"])
    hashes = [KeyMap(bytes_max=100_000, seed=seed).hashes(records).tolist() for seed in (SEED, bytes(16))]
    assert hashes[0] != hashes[1]


def test_hashes_are_those_of_siphash() -> None:
    keys = [bytes(range(length)) for length in range(70)]
    records = raw_records([*keys, None])
    hashes = np.zeros((records.count, 2), dtype=np.uint64)
    low, high = (np.uint64(int.from_bytes(SEED[at : at + 8], "little")) for at in (0, 8))
    hash_keys(low, high, records.opened.payload, records.places, hashes)
    assert [tuple(map(int, pair)) for pair in hashes[:-1]] == [siphash_128(SEED, key, 1, 3) for key in keys]
    assert hashes[-1].tolist() == [0, 0]
