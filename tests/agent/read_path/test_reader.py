"""Serving batches: which ones are sent, and that nothing but their first bytes changes."""

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.agent.cluster.view import PartitionView
from braidlog.agent.read_path.reader import COPY_BELOW_BYTES, DamagedExtent, ExtentGone, Reader, Slice, append_batches
from braidlog.cache.blocks import BlockCache
from braidlog.control.interface import (
    ControlPlane,
    FindExtents,
    FoundExtents,
    IndexedExtent,
    PartitionBounds,
    StoredObject,
)
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import TornRead
from braidlog.records.batch import has_valid_crc, scan_batches
from braidlog.records.placement import write_base_offset
from braidlog.records.record import Record, decode_batch, encode_batch
from braidlog.runtime.clock import SystemClock


def batch(count: int, value_bytes: int = 10) -> bytes:
    return encode_batch([Record(at, 1000 + at, b"k", bytes(value_bytes), ()) for at in range(count)])


def served(found: Slice) -> list[tuple[int, int]]:
    """(first offset, record count) of every batch in the slice, after checking each one whole."""
    data = memoryview(b"".join(found.buffers))
    assert len(data) == found.size_bytes
    result = []
    for position, header in scan_batches(data):
        whole = data[position : position + header.total_bytes]
        assert has_valid_crc(whole, header)
        assert header.partition_leader_epoch == 0
        records = decode_batch(whole, bytes_max=1 << 20)
        assert [record.offset for record in records] == list(range(header.base_offset, header.end_offset))
        result.append((header.base_offset, len(records)))
    return result


def test_batches_get_consecutive_offsets_from_the_extents_base() -> None:
    extent = memoryview(batch(3) + batch(1) + batch(5))
    found = Slice([], 0, 100)
    append_batches(found, extent, 100, 1 << 20)
    assert served(found) == [(100, 3), (103, 1), (104, 5)]
    assert found.next_offset == 109


def test_batches_carry_the_leader_epoch_of_their_offset() -> None:
    small, large = batch(2), batch(2, COPY_BELOW_BYTES)
    for one in (small, large):  # copied, and passed on in pieces
        found = Slice([], 0, 100, ((0, 0), (3, 102), (4, 500)))
        append_batches(found, memoryview(one * 3), 100, 1 << 20)
        headers = [header for _, header in scan_batches(memoryview(b"".join(found.buffers)))]
        assert [(each.base_offset, each.partition_leader_epoch) for each in headers] == [(100, 0), (102, 3), (104, 3)]


def test_an_offset_inside_a_batch_gets_the_whole_batch() -> None:
    extent = memoryview(batch(3) + batch(4) + batch(5))
    found = Slice([], 0, 105)
    append_batches(found, extent, 100, 1 << 20)
    assert served(found) == [(103, 4), (107, 5)]


def test_the_first_batch_is_sent_however_large_and_the_next_only_if_it_fits() -> None:
    one = batch(2)
    found = Slice([], 0, 0)
    append_batches(found, memoryview(one * 3), 0, 1)
    assert served(found) == [(0, 2)]
    found = Slice([], 0, 0)
    append_batches(found, memoryview(one * 3), 0, 2 * len(one))
    assert served(found) == [(0, 2), (2, 2)]
    assert found.next_offset == 4


def test_a_first_batch_that_may_not_be_larger_is_left() -> None:
    one = batch(2)
    found = Slice([], 0, 0)
    assert not append_batches(found, memoryview(one * 3), 0, len(one) - 1, at_least_one=False)
    assert (served(found), found.next_offset) == ([], 0)
    assert not append_batches(found, memoryview(one * 3), 0, len(one), at_least_one=False)
    assert served(found) == [(0, 2)]


def test_large_batches_are_not_copied() -> None:
    extent = memoryview(batch(1, value_bytes=2 * COPY_BELOW_BYTES))
    found = Slice([], 0, 7)
    append_batches(found, extent, 7, 1 << 20)
    assert served(found) == [(7, 1)]
    assert isinstance(found.buffers[1], memoryview)
    assert found.buffers[1].obj is extent.obj


@given(st.binary(min_size=1, max_size=300), st.integers(0, 200))
@settings(max_examples=200)
def test_damaged_bytes_are_an_error_or_whole_batches_never_anything_else(noise: bytes, at: int) -> None:
    data = bytearray(batch(3) + batch(2))
    data[at : at + len(noise)] = noise
    found = Slice([], 0, 0)
    try:
        append_batches(found, memoryview(bytes(data)), 0, 1 << 20)
    except DamagedExtent:
        return
    assert found.size_bytes <= len(data)


def test_a_truncated_extent_is_damaged() -> None:
    whole = batch(3)
    for length in (1, 60, len(whole) - 1):
        with pytest.raises(DamagedExtent):
            append_batches(Slice([], 0, 0), memoryview(whole[:length]), 0, 1 << 20)


def placed(count: int, offset: int) -> bytes:
    """A batch as merging and compaction leave it: with its own offset."""
    whole = bytearray(batch(count))
    write_base_offset(whole, 0, offset)
    return bytes(whole)


def test_batches_that_were_compacted_keep_their_offsets_and_gaps() -> None:
    extent = memoryview(placed(3, 100) + placed(1, 110) + placed(2, 111))
    found = Slice([], 0, 100)
    assert append_batches(found, extent, 90, 1 << 20)
    assert served(found) == [(100, 3), (110, 1), (111, 2)]
    assert found.next_offset == 113


def test_an_offset_that_was_compacted_away_goes_on_with_the_next_batch() -> None:
    extent = memoryview(placed(3, 100) + placed(1, 110))
    found = Slice([], 0, 105)
    assert append_batches(found, extent, 100, 1 << 20)
    assert served(found) == [(110, 1)]


def test_an_extent_that_ends_in_a_gap_adds_nothing_and_lets_the_next_go_on() -> None:
    found = Slice([], 0, 105)
    assert append_batches(found, memoryview(placed(3, 100)), 100, 1 << 20)
    assert not found.buffers
    assert append_batches(found, memoryview(batch(2)), 120, 1 << 20)
    assert served(found) == [(120, 2)]


def test_a_slice_that_is_full_says_so() -> None:
    found = Slice([], 0, 100)
    assert not append_batches(found, memoryview(placed(3, 100) + placed(1, 110)), 100, 1)
    assert found.next_offset == 103


def test_only_what_begins_below_the_limit_is_served() -> None:
    extent = memoryview(batch(3) + batch(4) + batch(5))
    found = Slice([], 0, 100)
    assert not append_batches(found, extent, 100, 1 << 20, 107)
    assert served(found) == [(100, 3), (103, 4)]
    assert found.next_offset == 107
    assert not append_batches(found, extent, 107, 1 << 20, 107)
    assert found.next_offset == 107


async def test_what_is_in_memory_is_read_at_once_and_the_same_as_by_asking() -> None:
    store = MemoryStore(MemoryBucket(), url="memory://", clock=SystemClock())
    cache = BlockCache(store, bytes_max=1 << 20)
    reader = Reader(cast(ControlPlane, None), cache, call_timeout_s=1.0)
    partition = PartitionView(11, b"t" * 16, 0)
    for number, counts in enumerate([(3, 1), (2,), (4, 4)]):
        data = b"".join(map(batch, counts))
        start = partition.high_watermark
        extent = IndexedExtent(11, start, start + sum(counts), number, 5, len(data), 0, 0)
        cache.insert(f"key-{number}", b"other" + data)
        partition.tail.append((extent, StoredObject(number, f"key-{number}", 5 + len(data))))
        partition.high_watermark = extent.end_offset
    for offset in range(partition.high_watermark):
        for bytes_max in (1, 150, 300, 1 << 20):
            for end_offset in (partition.high_watermark, 9):
                for at_least_one in (True, False):
                    limits = (partition, offset, bytes_max, end_offset)
                    asked = await reader.read(*limits, at_least_one=at_least_one)
                    at_hand = reader.at_hand(*limits, at_least_one=at_least_one)
                    assert at_hand == asked or (at_hand is None and not asked.buffers)
                    assert asked.size_bytes <= bytes_max or (at_least_one and len(served(asked)) == 1)
    assert reader.at_hand(partition, partition.high_watermark, 1 << 20) is None
    before = cache.statistics().hits
    assert reader.at_hand(partition, 0, 1) is not None
    assert cache.statistics().hits == before + 1

    partition.tail[1] = (partition.tail[1][0], StoredObject(1, "elsewhere", 100))
    assert reader.at_hand(partition, 0, 1) is not None
    assert reader.at_hand(partition, 0, 1 << 20) is None
    assert reader.at_hand(partition, 5, 1) is None


class NothingFound:
    """A control plane that knows no better than the tail at hand."""

    def __init__(self, partition: PartitionView) -> None:
        self._partition = partition

    async def find_extents(self, request: FindExtents, *, timeout_s: float | None = None) -> FoundExtents:
        pairs = self._partition.tail_from(request.offset, request.bytes_max) or []
        return FoundExtents(
            PartitionBounds(11, 0, 0, 0), [extent for extent, _ in pairs], [stored for _, stored in pairs]
        )


@pytest.mark.parametrize(
    ("second", "error"),
    [(None, ExtentGone), (batch(2)[:40], TornRead), (bytes(len(batch(2))), DamagedExtent)],
    ids=["missing", "truncated", "overwritten"],
)
@pytest.mark.parametrize("is_cached", [False, True], ids=["stored", "cached"])
async def test_what_cannot_be_read_does_not_hide_what_comes_before_it(
    second: bytes | None, error: type[Exception], is_cached: bool
) -> None:
    store = MemoryStore(MemoryBucket(), url="memory://", clock=SystemClock())
    cache = BlockCache(store, bytes_max=1 << 20)
    partition = PartitionView(11, b"t" * 16, 0)
    for number, (count, data) in enumerate([(3, batch(3)), (2, second), (4, batch(4))]):
        length = len(batch(count))
        start = partition.high_watermark
        extent = IndexedExtent(11, start, start + count, number, 0, length, 0, 0)
        partition.tail.append((extent, StoredObject(number, f"key-{number}", length)))
        partition.high_watermark = extent.end_offset
        if data is not None:
            await store.put(f"key-{number}", data)
            if is_cached and len(data) == length:
                cache.insert(f"key-{number}", data)
    reader = Reader(cast(ControlPlane, NothingFound(partition)), cache, call_timeout_s=1.0)
    found = await reader.read(partition, 0, 1 << 20)
    assert served(found) == [(0, 3)]
    assert found.next_offset == 3
    with pytest.raises(error):
        await reader.read(partition, 3, 1 << 20)
    assert served(await reader.read(partition, 5, 1 << 20)) == [(5, 4)]
    if is_cached and error is DamagedExtent:
        at_hand = reader.at_hand(partition, 0, 1 << 20)
        assert at_hand is not None
        assert served(at_hand) == [(0, 3)]


@pytest.mark.parametrize(
    "held", [bytes(len(batch(3) + batch(2))), batch(3), batch(3) + batch(2)[:20]], ids=["zeros", "cut", "torn"]
)
async def test_what_is_damaged_in_the_cache_alone_is_read_again(held: bytes) -> None:
    store = MemoryStore(MemoryBucket(), url="memory://", clock=SystemClock())
    cache = BlockCache(store, bytes_max=1 << 20)
    data = batch(3) + batch(2)
    await store.put("key", data)
    cache.insert("key", held)
    partition = PartitionView(11, b"t" * 16, 0, high_watermark=5)
    partition.tail.append((IndexedExtent(11, 0, 5, 0, 0, len(data), 0, 0), StoredObject(0, "key", len(data))))
    reader = Reader(cast(ControlPlane, NothingFound(partition)), cache, call_timeout_s=1.0)
    assert reader.at_hand(partition, 0, 1 << 20) is None
    assert served(await reader.read(partition, 0, 1 << 20)) == [(0, 3), (3, 2)]
    at_hand = reader.at_hand(partition, 0, 1 << 20)
    assert at_hand is not None, "the damaged one is gone"
    assert served(at_hand) == [(0, 3), (3, 2)]


async def test_what_is_damaged_in_the_store_is_read_again_once() -> None:
    store = MemoryStore(MemoryBucket(), url="memory://", clock=SystemClock())
    cache = BlockCache(store, bytes_max=1 << 20)
    data = bytes(len(batch(3)))
    await store.put("key", data)
    partition = PartitionView(11, b"t" * 16, 0, high_watermark=3)
    partition.tail.append((IndexedExtent(11, 0, 3, 0, 0, len(data), 0, 0), StoredObject(0, "key", len(data))))
    reader = Reader(cast(ControlPlane, NothingFound(partition)), cache, call_timeout_s=1.0)
    for _ in range(3):
        with pytest.raises(DamagedExtent):
            await reader.read(partition, 0, 1 << 20)
    assert cache.statistics().misses == 1
    await store.delete("key")
    with pytest.raises(DamagedExtent):  # and not that it is gone: nobody asks the store
        await reader.read(partition, 0, 1 << 20)
