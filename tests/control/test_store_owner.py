"""A store belongs to one cluster, and nothing in another's is ever deleted."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.fakes import FakeClock

from braidlog.control.metadata.store import MetadataStore, open_metadata
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.control.store_owner import StoreOwner
from braidlog.objects.keys import OWNER_KEY, data_key
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.open import open_store
from braidlog.objects.owner import WrongStore, claim, read_owner
from braidlog.objects.store import Blob, Bytes, NotFound, Store, StoreDenied, StoreUnavailable
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import InvalidSetting

SOMETHING = data_key(1, "another", 0)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(MemoryBucket(), url="memory://", clock=FakeClock())


Start = Callable[[Store, int], Awaitable[ControlService]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """A control plane with fresh metadata, and an identity by its seed."""
    started: list[ControlService] = []

    async def start(store: Store, seed: int) -> ControlService:
        metadata = await open_metadata("sqlite://")
        service = ControlService(metadata, store, SystemClock(), SeededEntropy(seed), ControlSettings())
        started.append(service)
        await service.start()
        return service

    yield start
    for service in started:
        await service.close()


async def test_the_first_to_use_a_store_owns_it(store: MemoryStore, start: Start) -> None:
    with pytest.raises(NotFound):
        await read_owner(store)
    service = await start(store, 1)
    assert await read_owner(store) == service.cluster_id


async def test_fresh_metadata_does_not_take_a_store_that_is_anothers(store: MemoryStore, start: Start) -> None:
    await start(store, 1)
    with pytest.raises(WrongStore, match="belongs to cluster"):
        await start(store, 2)


@pytest.mark.parametrize("key", [SOMETHING, "journal/another/0000000000/0000000000"])
async def test_fresh_metadata_does_not_take_a_store_with_records(store: MemoryStore, start: Start, key: str) -> None:
    """Also where nobody has said whose they are."""
    await store.put(key, b"records")
    with pytest.raises(WrongStore, match="holds records"):
        await start(store, 1)
    assert store._bucket.keys == [key]


async def test_what_others_keep_in_the_bucket_does_not_matter(store: MemoryStore, start: Start) -> None:
    await store.put("shuffle/job/heartbeat", b"")
    await start(store, 1)


async def known(metadata: MetadataStore, key: str) -> None:
    """As if the object had been sequenced."""
    await metadata.acquire_fencing_epoch()
    await insert_object(metadata, key)


async def insert_object(metadata: MetadataStore, key: str) -> None:
    await metadata.transact(
        lambda tx: tx.execute(
            "INSERT INTO objects (number, nonce, object_key, size_bytes, write_epoch, committed_ms, live_count)"
            " VALUES (1, ?, ?, 1, 1, 1, 1)",
            (b"n" * 16, key),
        )
    )


async def test_metadata_does_not_take_a_store_without_what_it_knows_of(store: MemoryStore) -> None:
    metadata = await open_metadata("sqlite://")
    await known(metadata, SOMETHING)
    owner = StoreOwner(store, metadata, "ours")
    with pytest.raises(WrongStore, match="does not have"):
        await owner.check()
    await store.put(SOMETHING, b"records")
    await owner.check()
    assert await read_owner(store) == "ours"
    await metadata.close()


class Flaky(MemoryStore):
    """Cannot be read until the test says so."""

    is_there = False

    async def get(self, key: str) -> Blob:
        if not self.is_there:
            raise StoreUnavailable("not now")
        return await super().get(key)


async def test_a_store_that_is_away_is_looked_at_later_and_not_swept_before() -> None:
    store = Flaky(MemoryBucket(), url="memory://", clock=FakeClock())
    metadata = await open_metadata("sqlite://")
    await metadata.acquire_fencing_epoch()
    owner = StoreOwner(store, metadata, "ours")
    await owner.check_at_start()
    with pytest.raises(StoreUnavailable):  # which is what the sweeper would meet
        await owner.check()
    assert await claim(store, "another") == "another"
    store.is_there = True
    with pytest.raises(WrongStore):
        await owner.check()
    await metadata.close()


async def test_of_two_at_the_same_time_one_gets_it(store: MemoryStore) -> None:
    assert len(set(await asyncio.gather(claim(store, "one"), claim(store, "two")))) == 1


async def test_an_owner_that_cannot_be_read(store: MemoryStore) -> None:
    await store.put(OWNER_KEY, b"{")
    with pytest.raises(WrongStore, match="cannot be read"):
        await read_owner(store)


async def test_a_store_that_cannot_be_written_to_is_told_at_the_start(tmp_path: Path, start: Start) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = open_store(f"file://{tmp_path}/file/store", clock=SystemClock(), entropy=SeededEntropy(1))
    with pytest.raises(InvalidSetting, match="cannot be used"):
        await start(store, 1)
    await store.close()


async def test_who_takes_over_with_a_wrong_store_does_not_end_the_one_that_runs(
    store: MemoryStore, start: Start, tmp_path: Path
) -> None:
    """Found out before the fencing epoch is taken."""
    url = f"sqlite://{tmp_path}/metadata.db"
    metadata = await open_metadata(url)
    running = ControlService(metadata, store, SystemClock(), SeededEntropy(1), ControlSettings())
    await running.start()
    anothers = MemoryStore(MemoryBucket(), url="memory://", clock=FakeClock())
    await start(anothers, 2)
    second = ControlService(await open_metadata(url), anothers, SystemClock(), SeededEntropy(3), ControlSettings())
    with pytest.raises(WrongStore, match="belongs to cluster"):
        await second.start()
    await second.close()
    await metadata.read(lambda tx: None)  # it is not fenced off
    await running.close()


async def test_nor_does_one_with_a_store_that_nobody_has_used(store: MemoryStore, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    metadata = await open_metadata(url)
    running = ControlService(metadata, store, SystemClock(), SeededEntropy(1), ControlSettings())
    await running.start()
    await insert_object(metadata, SOMETHING)
    mistyped = MemoryStore(MemoryBucket(), url="memory://", clock=FakeClock())
    second = ControlService(await open_metadata(url), mistyped, SystemClock(), SeededEntropy(3), ControlSettings())
    with pytest.raises(WrongStore, match="does not have"):
        await second.start()
    await second.close()
    await metadata.read(lambda tx: None)  # it is not fenced off
    await running.close()


class Denied(MemoryStore):
    async def get(self, key: str) -> Blob:
        raise StoreDenied("no such bucket")


class ReadOnly(MemoryStore):
    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str:
        raise StoreDenied("only for reading")


@pytest.mark.parametrize("kind", [Denied, ReadOnly])
async def test_nor_does_one_with_a_store_that_cannot_be_used(
    store: MemoryStore, tmp_path: Path, kind: type[MemoryStore]
) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    metadata = await open_metadata(url)
    running = ControlService(metadata, store, SystemClock(), SeededEntropy(1), ControlSettings())
    await running.start()
    useless = kind(store._bucket, url="memory://", clock=FakeClock())
    second = ControlService(await open_metadata(url), useless, SystemClock(), SeededEntropy(3), ControlSettings())
    with pytest.raises(InvalidSetting, match="cannot be used"):
        await second.start()
    await second.close()
    await metadata.read(lambda tx: None)  # it is not fenced off
    await running.close()
