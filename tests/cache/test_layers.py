"""Layers of caches: what they keep, what they share, and that none of them can make a read or a put fail."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import FakeClock

from braidlog.cache.disk import DiskLayer
from braidlog.cache.layers import LayerStatistics, LruIndex, MemoryLayer, StoreLayer
from braidlog.cache.members import LEFT_OUT_S, owner_of
from braidlog.cache.zone_ring import ZoneRingLayer, ZoneRingMember
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import AlreadyExists, Bytes, NotFound, StoreUnavailable
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy

DATA = bytes(range(200))


def memory_store() -> MemoryStore:
    return MemoryStore(MemoryBucket(), url="memory://cache", clock=FakeClock())


class Below:
    """A layer that counts, and waits until it may answer."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.reads: list[tuple[str, int, int]] = []
        self.opened = asyncio.Event()
        self.opened.set()
        self.failure: Exception | None = None

    async def read(self, key: str, object_size: int, start: int, end: int) -> Bytes:
        self.reads.append((key, start, end))
        await self.opened.wait()
        if self.failure is not None:
            raise self.failure
        return self.objects[key][start:end]

    async def put(self, key: str, data: Bytes) -> None:
        self.objects[key] = bytes(data)

    async def close(self) -> None:
        pass


async def test_a_whole_object_is_read_once_however_many_ask() -> None:
    below = Below({"a": DATA})
    layer = MemoryLayer(below, bytes_max=1000)
    below.opened.clear()
    reads = [asyncio.ensure_future(layer.read("a", 200, at, at + 2)) for at in range(0, 100, 10)]
    await asyncio.sleep(0)
    reads[0].cancel()
    below.opened.set()
    assert [bytes(await each) for each in reads[1:]] == [DATA[at : at + 2] for at in range(10, 100, 10)]
    assert bytes(await layer.read("a", 200, 150, 200)) == DATA[150:]
    assert below.reads == [("a", 0, 200)]
    assert layer.statistics() == LayerStatistics(hits=1, misses=1, shared=9, hit_bytes=50, size_bytes=200)
    assert layer.statistics().hit_rate == pytest.approx(10 / 11)
    await layer.close()


async def test_sub_batches_are_read_as_they_are_asked_for() -> None:
    below = Below({"a": DATA})
    layer = MemoryLayer(below, bytes_max=1000, whole=False)
    for _ in range(2):
        assert bytes(await layer.read("a", 200, 10, 20)) == DATA[10:20]
        assert bytes(await layer.read("a", 200, 15, 30)) == DATA[15:30]
    assert below.reads == [("a", 10, 20), ("a", 15, 30)]
    assert layer.statistics().size_bytes == 25


async def test_the_least_recently_used_goes_first_and_what_is_too_large_is_not_kept() -> None:
    below = Below(dict.fromkeys("abcd", DATA))
    layer = MemoryLayer(below, bytes_max=450)
    for name in "abac":  # b goes
        await layer.read(name, 200, 0, 1)
    below.reads.clear()
    for name in "acb":
        await layer.read(name, 200, 0, 1)
    assert below.reads == [("b", 0, 200)]
    below.objects["large"] = bytes(1000)
    assert len(await layer.read("large", 1000, 10, 20)) == 10
    assert below.reads[-1] == ("large", 10, 20)
    assert layer.statistics().size_bytes <= 450


async def test_what_is_written_is_kept_only_if_wanted() -> None:
    for on_write in (True, False):
        below = Below({})
        layer = MemoryLayer(below, bytes_max=1000, on_write=on_write)
        await layer.put("a", DATA)
        assert below.objects["a"] == DATA
        assert bytes(await layer.read("a", 200, 3, 9)) == DATA[3:9]
        assert bool(below.reads) is not on_write


async def test_a_failed_read_fails_all_who_wait_and_is_tried_again() -> None:
    below = Below({"a": DATA})
    layer = MemoryLayer(below, bytes_max=1000)
    below.failure = StoreUnavailable("away")
    results = await asyncio.gather(*(layer.read("a", 200, 0, 1) for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in results] == [StoreUnavailable] * 3
    below.failure = None
    assert bytes(await layer.read("a", 200, 0, 1)) == DATA[:1]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 60)), max_size=40))
def test_the_index_keeps_within_its_bytes(steps: list[tuple[str, int]]) -> None:
    index = LruIndex(100)
    kept: dict[str, int] = {}
    for name, size in steps:
        kept.pop(name, None)
        kept[name] = size
        for gone in index.add((name, 0, 1), size):
            del kept[gone[0]]
        assert index.size_bytes == sum(kept.values()) <= 100
        assert all(index.use((each, 0, 1)) for each in list(kept))


async def test_the_disk_keeps_what_memory_lost(tmp_path: Path) -> None:
    below = Below(dict.fromkeys("abc", DATA))
    disk = DiskLayer(below, tmp_path / "cache", bytes_max=450, on_write=True)
    layer = MemoryLayer(disk, bytes_max=200)
    for name in "abab":
        assert bytes(await layer.read(name, 200, 5, 9)) == DATA[5:9]
        await disk.wait_written()
    assert below.reads == [("a", 0, 200), ("b", 0, 200)]
    await layer.read("c", 200, 0, 1)
    await disk.wait_written()
    assert disk.statistics().size_bytes == 400
    assert len(list((tmp_path / "cache").iterdir())) == 2
    await disk.put("d", DATA)
    await disk.wait_written()
    assert bytes(await disk.read("d", 200, 7, 11)) == DATA[7:11]
    assert disk.statistics().hits == 3
    await layer.close()
    # Another process starts with an empty folder.
    DiskLayer(below, tmp_path / "cache", bytes_max=450)
    assert list((tmp_path / "cache").iterdir()) == []


async def test_a_disk_that_fails_costs_only_time(tmp_path: Path) -> None:
    below = Below({"a": DATA})
    disk = DiskLayer(below, tmp_path / "cache", bytes_max=1000)
    await disk.read("a", 200, 0, 10)
    await disk.wait_written()
    for each in (tmp_path / "cache").iterdir():
        each.write_bytes(b"cut")
    assert await disk.read("a", 200, 0, 10) == DATA[:10]
    await disk.wait_written()
    for each in (tmp_path / "cache").iterdir():
        each.unlink()
    (tmp_path / "cache").rmdir()
    assert await disk.read("a", 200, 0, 10) == DATA[:10]
    assert await disk.read("a", 200, 20, 30) == DATA[20:30]
    await disk.close()


@settings(max_examples=50, deadline=None)
@given(st.sets(st.text("abc123", min_size=1), min_size=2, max_size=6), st.data())
def test_a_member_that_goes_moves_only_what_it_owned(members: set[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(members)))
    for number in range(30):
        key = f"shuffle/job/{number}"
        before = owner_of(key, dict.fromkeys(members))
        after = owner_of(key, dict.fromkeys(members - {gone}))
        assert before in (after, gone)
    assert owner_of("key", {}) is None


def test_members_own_about_as_much_as_each_other() -> None:
    members = dict.fromkeys(["one", "two", "three"])
    owners = [owner_of(f"shuffle/job/{number}", members) for number in range(900)]
    assert min(owners.count(name) for name in members) > 230


class Ring:
    """Members of one zone over one store, each with its own memory."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.bottoms: dict[str, StoreLayer] = {}
        self.members: dict[str, ZoneRingMember] = {}
        self.addresses: dict[str, str] = {}

    async def join(self, name: str) -> None:
        self.bottoms[name] = StoreLayer(self.store)
        layer = MemoryLayer(self.bottoms[name], bytes_max=100_000, on_write=True)
        self.members[name] = ZoneRingMember(layer)
        self.addresses[name] = await self.members[name].start("127.0.0.1:0")

    def layer(self, clock: FakeClock | SystemClock | None = None) -> ZoneRingLayer:
        return ZoneRingLayer(self.store, self.addresses, clock=clock or SystemClock(), entropy=SeededEntropy(1))

    @property
    def gets(self) -> int:
        return sum(each.gets for each in self.bottoms.values())

    async def close(self) -> None:
        for each in self.members.values():
            await each.close()


async def test_one_get_per_object_for_all_of_a_zone() -> None:
    store = memory_store()
    ring = Ring(store)
    for name in ("one", "two", "three"):
        await ring.join(name)
    for number in range(20):
        await store.put(f"cold-{number}", DATA)
    readers = [ring.layer() for _ in range(3)]
    for number in range(20):
        asked = [reader.read(f"cold-{number}", 200, 4, 40) for reader in readers for _ in range(2)]
        assert {bytes(each) for each in await asyncio.gather(*asked)} == {DATA[4:40]}
    assert ring.gets == 20
    assert all(bottom.gets for bottom in ring.bottoms.values())
    # What goes in through its owner is in its cache.
    await readers[0].put("warm", DATA)
    assert bytes((await store.get("warm")).data) == DATA
    assert bytes(await readers[1].read("warm", 200, 0, 200)) == DATA
    assert ring.gets == 20
    assert readers[0].statistics().around == 0
    for reader in readers:
        await reader.close()
    await ring.close()


async def test_errors_of_the_store_pass_through_the_owner() -> None:
    ring = Ring(memory_store())
    await ring.join("one")
    layer = ring.layer()
    with pytest.raises(NotFound):
        await layer.read("nowhere", 200, 0, 1)
    await layer.put("a", DATA)
    with pytest.raises(AlreadyExists):
        await layer.put("a", DATA)
    assert layer.statistics().around == 0
    await layer.close()
    await ring.close()


async def test_a_member_that_is_gone_is_left_out_for_a_while() -> None:
    store = memory_store()
    ring = Ring(store)
    await ring.join("one")
    ring.addresses["gone"] = "127.0.0.1:1"
    clock = FakeClock()
    layer = ring.layer(clock)
    keys = [key for key in (f"key-{number}" for number in range(40)) if owner_of(key, ring.addresses) == "gone"][:3]
    await layer.put(keys[0], DATA)
    assert bytes(await layer.read(keys[0], 200, 1, 3)) == DATA[1:3]
    assert layer.statistics().around == 1
    assert ring.gets == 1
    clock.advance(LEFT_OUT_S)
    assert bytes(await layer.read(keys[0], 200, 1, 3)) == DATA[1:3]
    assert layer.statistics().around == 2
    layer.set_members({"one": ring.addresses["one"]})
    clock.advance(LEFT_OUT_S)
    await layer.put(keys[1], DATA)
    assert layer.statistics().around == 2
    layer.set_members({})
    await layer.put(keys[2], DATA)
    await layer.close()
    await ring.close()


async def test_a_put_whose_owner_dies_with_it_is_not_lost_and_not_refused() -> None:
    store = memory_store()

    class Dying(StoreLayer):
        async def put(self, key: str, data: Bytes) -> None:
            await super().put(key, data)
            await member._server.close()  # after the object is written, and before the answer is
            await asyncio.sleep(3600)

    member = ZoneRingMember(Dying(store))
    address = await member.start("127.0.0.1:0")
    layer = ZoneRingLayer(store, {"one": address}, clock=SystemClock(), entropy=SeededEntropy(1))
    await layer.put("a", DATA)
    assert bytes((await store.get("a")).data) == DATA
    await layer.close()


async def test_a_member_serves_its_own_without_a_detour() -> None:
    store = memory_store()
    bottom = StoreLayer(store)
    own = MemoryLayer(bottom, bytes_max=1000, on_write=True)
    layer = ZoneRingLayer(
        store, {"me": "127.0.0.1:1"}, clock=FakeClock(), entropy=SeededEntropy(1), own_name="me", own_layer=own
    )
    await layer.put("a", DATA)
    assert bytes(await layer.read("a", 200, 0, 5)) == DATA[:5]
    assert (bottom.puts, bottom.gets) == (1, 0)
    await layer.close()
