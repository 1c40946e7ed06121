"""What an agent answers to those of its zone, whoever asks."""

from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.fakes import FakeClock

from braidlog.cache.blocks import BLOCK_BYTES, BlockCache
from braidlog.cache.neighbours import READ_METHOD, Neighbours
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import Store
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.rpc.client import RpcClient


class WatchedBlocks(BlockCache):
    """Counts the reads that are let through."""

    reads = 0

    async def read_own(self, key: str, object_size: int, start: int, end: int) -> memoryview:
        self.reads += 1
        assert end - start < 1_000 * BLOCK_BYTES, "this would never end"
        return await super().read_own(key, object_size, start, end)


@pytest.fixture
async def store() -> Store:
    store = MemoryStore(MemoryBucket(), url="memory://", clock=FakeClock())
    await store.put("data/key", b"0123456789")
    return store


@pytest.fixture
async def blocks(store: Store) -> WatchedBlocks:
    return WatchedBlocks(store, bytes_max=1 << 20)


@pytest.fixture
async def client(blocks: WatchedBlocks) -> AsyncIterator[RpcClient]:
    neighbours = Neighbours(clock=FakeClock(), entropy=SeededEntropy(1))
    client = RpcClient(await neighbours.serve(blocks, "127.0.0.1:0"), FakeClock(), SeededEntropy(2))
    yield client
    await client.close()
    await neighbours.close()
    await blocks.close()


async def ask(client: RpcClient, size_bytes: int, start: int, end: int) -> bytes:
    return await client.call(READ_METHOD, msgspec.msgpack.encode(["data/key", size_bytes, start, end]))


async def test_a_range_is_answered(client: RpcClient) -> None:
    assert await ask(client, 10, 2, 5) == b"234"


@pytest.mark.parametrize(
    ("size_bytes", "start", "end"),
    [(10, 5, 5), (10, -1, 5), (10, 5, 11), (1 << 46, 0, 1 << 46), (1 << 62, 1 << 61, 1 << 62)],
)
async def test_a_range_that_no_object_has_is_refused_before_it_is_read(
    client: RpcClient, blocks: WatchedBlocks, size_bytes: int, start: int, end: int
) -> None:
    with pytest.raises(InvalidSetting):
        await ask(client, size_bytes, start, end)
    assert not blocks.reads
    assert await ask(client, 10, 0, 10) == b"0123456789"
