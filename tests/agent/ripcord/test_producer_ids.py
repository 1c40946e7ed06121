"""Ids for producers out of the bucket: no two are the same, and none is the control plane's."""

import asyncio

import pytest
from tests.fakes import FakeClock

from braidlog.agent.ripcord.producer_ids import BLOCK_IDS, NoProducerIds, ProducerIds, block_start
from braidlog.objects.keys import NUMBER_MAX, PRODUCER_IDS_PREFIX, producer_ids_key
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.limits import PRODUCER_IDS_OF_AGENTS_FROM


def memory_store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(MemoryBucket(), url="memory://", clock=clock)


def ids(store: MemoryStore, seed: int) -> ProducerIds:
    return ProducerIds(store, FakeClock(), SeededEntropy(seed), incarnation=f"agent-{seed}")


class FewBlocks(SeededEntropy):
    """Chance that falls on few numbers, so that agents meet."""

    def below(self, bound: int) -> int:
        return super().below(min(bound, 4))


def test_ids_fit_what_clients_hold() -> None:
    assert block_start(0) == PRODUCER_IDS_OF_AGENTS_FROM
    assert block_start(NUMBER_MAX + 1) < 2**63


async def test_agents_never_give_the_same_id() -> None:
    store = memory_store(FakeClock())
    agents = [ids(store, seed) for seed in range(3)]
    taken = await asyncio.gather(*(agent.take() for _ in range(BLOCK_IDS + 5) for agent in agents))
    assert len(set(taken)) == len(taken)
    assert min(taken) >= PRODUCER_IDS_OF_AGENTS_FROM
    page = await store.list(PRODUCER_IDS_PREFIX)
    assert len(page.objects) == 6
    assert all(agent.blocks_claimed == 2 for agent in agents)


async def test_a_block_is_claimed_once() -> None:
    store = memory_store(FakeClock())
    for seed in range(4):
        agent = ProducerIds(store, FakeClock(), FewBlocks(seed), incarnation="x")
        try:
            await agent.take()
        except NoProducerIds:
            pass
    page = await store.list(PRODUCER_IDS_PREFIX)
    assert {meta.key for meta in page.objects} <= {producer_ids_key(block) for block in range(4)}
    for block in range(4):
        await store.put(producer_ids_key(block), b"taken", overwrite=True)
    with pytest.raises(NoProducerIds):
        await ProducerIds(store, FakeClock(), FewBlocks(9), incarnation="x").take()


async def test_one_agent_that_is_asked_often_at_once_claims_one_block() -> None:
    store = memory_store(FakeClock())
    agent = ids(store, 7)
    taken = await asyncio.gather(*(agent.take() for _ in range(100)))
    assert sorted(taken) == list(range(min(taken), min(taken) + 100))
    assert agent.blocks_claimed == 1
