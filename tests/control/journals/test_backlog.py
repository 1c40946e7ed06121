"""The backlog of journals: what may still be unsequenced, and who waits for it."""

from pathlib import Path

from tests.control.driver import Plane, batch, commit, create_topic, new_producer, take_job
from tests.control.journals.driver import (
    Journal,
    ReplayingAgent,
    file,
    journal_file,
    record_count,
    register,
    replay_all,
    restarted,
)

from braidlog.control.interface import (
    SCAN,
    AgentHeartbeat,
    AlterConfigs,
    ConfigChange,
    RegisterAgent,
    RequestScan,
    TopicInfo,
)


async def test_a_classic_gap_is_out_of_order_only_when_every_journal_is_replayed(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    pid = await new_producer(plane.service)
    agent = ReplayingAgent(plane)
    await agent.put(journal_file([(topic.topic_id, 0, [batch(1, pid, 0, 0)])], 0))
    await plane.service.request_scan(RequestScan("agent-a"))
    assert await commit(plane.service, topic, [batch(1, pid, 0, 1)]) == [(19, -1, False)]
    # Nor is a producer adopted that a journal may tell of.
    assert await commit(plane.service, topic, [batch(1, 777, 0, 5)]) == [(19, -1, False)]
    await agent.work()
    assert await commit(plane.service, topic, [batch(1, pid, 0, 1)]) == [(0, 1, False)]
    assert await commit(plane.service, topic, [batch(1, pid, 0, 5)]) == [(45, -1, False)]
    assert await commit(plane.service, topic, [batch(1, 777, 0, 5)]) == [(0, 2, False)]


async def test_producer_state_that_would_have_expired_outlives_an_unreplayed_journal(
    plane: Plane, journal: Journal, tmp_path: Path
) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 0))
    agent = ReplayingAgent(plane)
    # The control plane is away; the producer sends its last batch again, and another one.
    resent = journal.file(batch(1, pid, 0, 0))
    following = journal.file(batch(1, pid, 0, 1))
    await agent.put(resent)
    await agent.put(following)
    plane.clock.advance(2 * 3600)
    plane = await restarted(plane, tmp_path)
    assert await plane.service.parts.producers.expire_once() == 0
    await replay_all(plane)
    assert await journal.log() == [(0, 0), (0, 1)]
    assert plane.service.parts.journals.statistics().duplicate_batches == 1
    plane.clock.advance(2 * 3600)
    assert await plane.service.parts.producers.expire_once() == 0
    await replay_all(plane)
    assert await plane.service.parts.producers.expire_once() == 1


async def test_without_journals_producers_expire_as_ever(plane: Plane) -> None:
    await new_producer(plane.service)
    plane.clock.advance(3600)
    assert await plane.service.parts.producers.expire_once() == 1


async def test_heartbeats_tell_when_all_that_was_journaled_before_a_request_is_sequenced(
    plane: Plane, agent: ReplayingAgent
) -> None:
    topic = await create_topic(plane.service)
    await register(plane)
    await agent.put(file(topic, 0, incarnation="agent-b"))

    async def replayed() -> int:
        return (await plane.service.heartbeat_agent(AgentHeartbeat("agent-a"))).scans_replayed

    asked = await plane.service.request_scan(RequestScan("agent-a"))
    assert await replayed() < asked.scan
    await agent.do(plane.service, await take_job(plane.service, "agent", [SCAN]))
    assert await replayed() < asked.scan
    assert plane.service.parts.journals.backlog.is_behind()
    # What is asked for while a scan is under way needs another one.
    again = await plane.service.request_scan(RequestScan("agent-a"))
    assert again.scan > asked.scan
    await agent.work()
    assert await replayed() >= again.scan
    assert not plane.service.parts.journals.backlog.is_behind()
    assert await record_count(plane, topic) == 1


async def test_a_classic_gap_is_told_when_a_scan_that_began_after_it_was_replayed(
    plane: Plane, agent: ReplayingAgent
) -> None:
    backlog = plane.service.parts.journals.backlog
    gap, another = (7, 0, 1, 5), (8, 0, 1, 5)
    assert not backlog.asks_for_scan(gap), "nobody journals what is classic"
    await plane.service.register_agent(RegisterAgent("agent-a", "127.0.0.1", 9092, "", journals=True))
    assert backlog.asks_for_scan(gap)
    await plane.service.parts.journals.plan_once()
    assert backlog.asks_for_scan(gap)
    await agent.work()
    assert not backlog.asks_for_scan(gap)
    assert backlog.asks_for_scan(another)


async def test_a_topic_that_becomes_classic_is_behind_until_its_journals_are_replayed(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    assert not plane.service.parts.journals.backlog.is_behind()
    change = ConfigChange("braidlog.topic.type", 0, "classic")
    await plane.service.alter_configs(AlterConfigs(2, topic.name, [change]))
    assert plane.service.parts.journals.backlog.is_behind()
    await agent.work()
    assert not plane.service.parts.journals.backlog.is_behind()
