"""Agents that find each other through the bucket."""

import msgspec
from tests.fakes import FakeClock

from braidlog.agent.ripcord.discovery import ALIVE_MS, FORGOTTEN_MS, AgentNotice, Discovery
from braidlog.control.interface import AgentInfo
from braidlog.objects.keys import discovery_key
from braidlog.objects.memory import MemoryBucket, MemoryStore


def memory_store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(MemoryBucket(), url="memory://", clock=clock)


def agent(node_id: int, incarnation: str, port: int = 0) -> AgentInfo:
    return AgentInfo(node_id, incarnation, "host", port or 9000 + node_id, "")


async def publish(store: MemoryStore, *agents: AgentInfo) -> None:
    for each in agents:
        await Discovery(store).publish(AgentNotice(each, 0))


async def test_who_wrote_lately_is_alive() -> None:
    clock = FakeClock()
    store = memory_store(clock)
    await publish(store, agent(1, "a"), agent(2, "b"))
    clock.advance(ALIVE_MS / 1000)
    await publish(store, agent(3, "c"))
    clock.advance(10.0)
    await publish(store, agent(4, "d"))
    looking = Discovery(store)
    assert [each.node_id for each in await looking.find("d")] == [3, 4]
    await publish(store, agent(1, "a"))
    assert [each.node_id for each in await looking.find("d")] == [1, 3, 4]
    await Discovery(store).withdraw("c")
    assert [each.node_id for each in await looking.find("d")] == [1, 4]


async def test_all_that_was_ever_said() -> None:
    """An agent that starts looks for its own node id, and for those that are taken."""
    clock = FakeClock()
    store = memory_store(clock)
    await publish(store, agent(1, "a"))
    clock.advance(3600.0)
    await publish(store, agent(2, "b"))
    assert [notice.agent.node_id for _, notice in await Discovery(store).read_all()] == [2, 1]


async def test_one_address_has_one_agent() -> None:
    clock = FakeClock()
    store = memory_store(clock)
    await publish(store, agent(1, "before", port=9092))
    clock.advance(5.0)
    await publish(store, agent(1, "after", port=9092))
    assert [each.incarnation for each in await Discovery(store).find("after")] == ["after"]


async def test_what_nobody_needs_any_more_is_deleted() -> None:
    clock = FakeClock()
    store = memory_store(clock)
    await publish(store, agent(1, "a"))
    clock.advance(FORGOTTEN_MS / 1000 + 1)
    await publish(store, agent(2, "b"))
    await Discovery(store).find("b")
    page = await store.list("discovery/")
    assert [meta.key for meta in page.objects] == [discovery_key("b")]


async def test_a_notice_that_cannot_be_read_is_passed_over() -> None:
    store = memory_store(FakeClock())
    await publish(store, agent(1, "a"))
    await store.put(discovery_key("x"), b"\xc1")
    assert [each.node_id for each in await Discovery(store).find("a")] == [1]


async def test_a_longer_notice_of_a_later_release_is_read() -> None:
    store = memory_store(FakeClock())
    later = [[1, "a", "host", 9092, ""], 5, "auto", "away", 3.0, "something new"]
    await store.put(discovery_key("a"), msgspec.msgpack.encode(later))
    notices = await Discovery(store).notices("a")
    assert [(each.mode, each.state) for each in notices] == [("auto", "away")]
