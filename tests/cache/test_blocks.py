"""The block cache over a store that counts its GETs."""

import asyncio

from braidlog.cache.blocks import BLOCK_BYTES, BlockCache
from braidlog.objects.store import Bytes, NotFound


class CountingStore:
    """Only `get_range`, held back until `opened`."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.gets: list[tuple[str, int, int]] = []
        self.opened = asyncio.Event()
        self.opened.set()

    async def get_range(self, key: str, start: int, end: int) -> Bytes:
        self.gets.append((key, start, end))
        await self.opened.wait()
        if key not in self.objects:
            raise NotFound(key)
        return self.objects[key][start:end]


def make_cache(store: CountingStore, bytes_max: int = 100 * BLOCK_BYTES) -> BlockCache:
    return BlockCache(store, bytes_max=bytes_max)  # type: ignore[arg-type]


async def test_concurrent_misses_share_one_get_and_later_reads_need_none() -> None:
    store = CountingStore({"a": b"0123456789"})
    store.opened.clear()
    cache = make_cache(store)
    reads = [asyncio.ensure_future(cache.read("a", 10, at, at + 2)) for at in range(5)]
    await asyncio.sleep(0)
    store.opened.set()
    assert [bytes(await read) for read in reads] == [b"01", b"12", b"23", b"34", b"45"]
    assert bytes(await cache.read("a", 10, 8, 10)) == b"89"
    assert store.gets == [("a", 0, 10)]
    statistics = cache.statistics()
    assert (statistics.hits, statistics.misses, statistics.shared) == (1, 1, 4)


async def test_a_reader_that_gives_up_does_not_take_the_get_from_the_others() -> None:
    store = CountingStore({"a": b"0123456789"})
    store.opened.clear()
    cache = make_cache(store)
    impatient = asyncio.ensure_future(cache.read("a", 10, 0, 1))
    await asyncio.sleep(0)
    patient = asyncio.ensure_future(cache.read("a", 10, 0, 1))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.sleep(0)
    store.opened.set()
    assert bytes(await patient) == b"0"
    assert len(store.gets) == 1


async def test_what_was_written_is_read_without_a_get() -> None:
    store = CountingStore({})
    cache = make_cache(store)
    cache.insert("a", b"0123456789")
    assert bytes(await cache.read("a", 10, 2, 4)) == b"23"
    assert store.gets == []


async def test_a_range_over_several_blocks_is_put_together() -> None:
    data = bytes(BLOCK_BYTES - 1) + b"ab" + bytes(BLOCK_BYTES)
    cache = make_cache(CountingStore({"a": data}))
    assert bytes(await cache.read("a", len(data), BLOCK_BYTES - 1, BLOCK_BYTES + 1)) == b"ab"


async def test_the_oldest_go_first_and_the_limit_holds() -> None:
    store = CountingStore({name: bytes(1000) for name in "abc"})
    cache = make_cache(store, bytes_max=2000)
    for name in "ab":
        await cache.read(name, 1000, 0, 1)
    await cache.read("a", 1000, 0, 1)
    await cache.read("c", 1000, 0, 1)
    assert cache.statistics().size_bytes == 2000
    store.gets.clear()
    await cache.read("a", 1000, 0, 1)
    await cache.read("b", 1000, 0, 1)
    assert store.gets == [("b", 0, 1000)]


async def test_a_missing_object_is_told_to_every_reader_and_not_remembered() -> None:
    store = CountingStore({})
    cache = make_cache(store)
    results = await asyncio.gather(*(cache.read("a", 5, 0, 5) for _ in range(2)), return_exceptions=True)
    assert all(isinstance(result, NotFound) for result in results)
    store.objects["a"] = b"12345"
    assert bytes(await cache.read("a", 5, 0, 5)) == b"12345"


async def test_who_is_wrong_about_an_objects_size_truncates_it_for_nobody_else() -> None:
    store = CountingStore({"a": b"0123456789"})
    cache = make_cache(store)
    assert bytes(await cache.read_own("a", 4, 1, 3)) == b"12"
    assert cache.hit("a", 3, 8) is None
    assert bytes(await cache.read("a", 10, 3, 8)) == b"34567"
    assert bytes(await cache.read_own("a", 4, 1, 3)) == b"12", "and the right block stays"
    assert bytes(await cache.read("a", 10, 8, 10)) == b"89"
    assert store.gets == [("a", 0, 4), ("a", 0, 10)]


async def test_nobody_waits_for_a_block_that_another_one_thinks_is_shorter() -> None:
    store = CountingStore({"a": b"0123456789"})
    store.opened.clear()
    cache = make_cache(store)
    wrong, right = (asyncio.ensure_future(cache.read_own("a", size, 0, 4)) for size in (4, 10))
    late = asyncio.ensure_future(cache.read_own("a", 10, 3, 8))
    await asyncio.sleep(0)
    store.opened.set()
    assert [bytes(await read) for read in (wrong, right, late)] == [b"0123", b"0123", b"34567"]
    assert bytes(await cache.read("a", 10, 8, 10)) == b"89"
    assert len(store.gets) == 2


async def test_what_is_damaged_is_read_again_from_the_store() -> None:
    store = CountingStore({"a": b"0123456789"})
    cache = make_cache(store)
    cache.insert("a", b"01damaged9")
    assert bytes(await cache.read_again("a", 10, 2, 9)) == b"2345678"
    assert bytes(await cache.read("a", 10, 0, 10)) == b"0123456789"
    assert store.gets == [("a", 0, 10)]
    assert cache.statistics().size_bytes == 10
