"""Scans and replays: what nobody has told of is found and sequenced, once, and is gone when it is merged away."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.control.driver import Plane, batch, create_topic, start_plane
from tests.control.journal_driver import LIGHTNING, ReplayingAgent, fence, journal_file

from braidlog.control.interface import (
    REPLAY,
    SCAN,
    AgentHeartbeat,
    AlterConfigs,
    BoundsRequest,
    CommitObject,
    CompleteJob,
    ConfigChange,
    DeleteRecords,
    DescribeJournals,
    EndSequence,
    ListJobs,
    RegisterAgent,
    ReplayDone,
    RequestScan,
    ScanDone,
    SequenceName,
    TakeJob,
    TopicInfo,
)
from braidlog.control.journal_meters import JournalMeters
from braidlog.control.journal_settings import JournalSettings
from braidlog.control.journals import should_seal
from braidlog.control.replays import ReplayNeeds
from braidlog.control.sequences import SequenceRecord
from braidlog.control.settings import ControlSettings
from braidlog.objects.keys import SLOTS_IN_FLIGHT_MAX, SLOTS_PER_SEQUENCE_MAX, journal_key
from braidlog.runtime.errors import ControlUnavailable

SETTINGS = ControlSettings(
    session_timeout_s=10**6,
    unreferenced_grace_s=60.0,
    journals=JournalSettings(sequence_age_s=60.0, replay_files_per_s=0),
)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    plane = await start_plane(f"sqlite://{tmp_path}/metadata.db", settings=SETTINGS)
    yield plane
    await plane.service.close()


@pytest.fixture
def agent(plane: Plane) -> ReplayingAgent:
    return ReplayingAgent(plane)


@pytest.fixture
async def topic(plane: Plane) -> TopicInfo:
    return await create_topic(plane.service, **LIGHTNING)


def file(topic: TopicInfo, slot: int, *, incarnation: str = "agent-a", sequence: int = 0) -> CommitObject:
    return journal_file([(topic.topic_id, 0, [batch()])], slot, incarnation=incarnation, sequence=sequence)


async def record_count(plane: Plane, topic: TopicInfo) -> int:
    [bounds] = (await plane.service.current_bounds(BoundsRequest(topic.partition_ids))).bounds
    return bounds.high_watermark


async def register(plane: Plane, incarnation: str = "agent-a", port: int = 9092) -> None:
    await plane.service.register_agent(RegisterAgent(incarnation, "127.0.0.1", port, ""))


# ── finding ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_nobody_has_told_of_is_found_and_sequenced(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    for slot in range(3):
        await agent.put(file(topic, slot))
    await agent.put(file(topic, 0, sequence=1))
    await plane.service.journals.plan_once()
    assert await agent.work() == 3
    assert await record_count(plane, topic) == 4
    figures = plane.service.journals.statistics()
    assert (figures.slow_files, figures.fast_files) == (4, 0)
    assert (figures.complete_sequences, figures.open_sequences) == (2, 0)
    assert agent.sealed == 2 * SLOTS_IN_FLIGHT_MAX


async def test_without_journals_nothing_is_looked_for(plane: Plane, agent: ReplayingAgent) -> None:
    await create_topic(plane.service)
    await plane.service.journals.plan_once()
    assert await agent.work() == 0
    await plane.service.register_agent(RegisterAgent("agent-a", "127.0.0.1", 9092, "", journals=True))
    await plane.service.journals.plan_once()
    assert await agent.work() == 1
    assert not plane.service.jobs.has_open


async def test_one_scan_at_a_time_and_none_of_them_is_kept(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    for _ in range(3):
        await plane.service.journals.plan_once()
    assert [job.kind for job in (await plane.service.list_jobs(ListJobs())).jobs] == [SCAN]
    assert not plane.service.jobs.has_open  # nothing that a pipeline would have to do
    await agent.work()
    assert (await plane.service.list_jobs(ListJobs())).jobs == []


async def test_a_scan_over_ten_thousand_sequenced_files_costs_few_lists_and_no_gets(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    """Ten full sequences, and one that is being written."""
    await register(plane)
    for sequence in range(11):
        for slot in range(SLOTS_PER_SEQUENCE_MAX if sequence < 10 else 10):
            key = journal_key("agent-a", sequence, slot)
            await plane.store.put(key, b"x")
            plane.service.journals.sequences.put(
                [
                    (
                        plane.service.journals.sequences.records.get(("agent-a", sequence))
                        or SequenceRecord("agent-a", sequence, plane.clock.wall_ms())
                    ).with_slots([slot])
                ]
            )
    await plane.service.journals.plan_once()
    await agent.work()
    assert agent.lists <= 20
    assert agent.gets == 0


async def test_a_replay_reads_only_what_is_not_sequenced(plane: Plane, agent: ReplayingAgent, topic: TopicInfo) -> None:
    await register(plane)
    for slot in range(10):
        made = file(topic, slot)
        await agent.put(made)
        if slot not in (4, 7):
            await plane.service.commit_object(made)
    await plane.service.journals.plan_once()
    await agent.work()
    assert agent.gets == 2
    assert agent.sealed == 0
    assert await record_count(plane, topic) == 10
    described = await plane.service.describe_journals(DescribeJournals())
    assert [(each.state, each.watermark, each.is_live) for each in described.sequences] == [("open", 10, True)]
    # The next scan only lists.
    await plane.service.journals.plan_once()
    await agent.work()
    assert agent.gets == 2


async def test_the_fast_and_the_slow_path_may_race(plane: Plane, agent: ReplayingAgent, topic: TopicInfo) -> None:
    await register(plane)
    files = [file(topic, slot) for slot in range(3)]
    for made in files:
        await agent.put(made)
    await plane.service.journals.plan_once()
    job = await plane.service.take_job(TakeJob("agent", [SCAN]))
    await agent.do(plane.service, job)
    job = await plane.service.take_job(TakeJob("agent", [REPLAY]))
    assert job.task is not None
    assert job.task.replay is not None
    for made in files[:2]:
        await plane.service.commit_object(made)
    done = await agent.replay(plane.service, job.task.replay)
    await plane.service.commit_object(files[2])
    assert (await plane.service.complete_job(CompleteJob(job.job_id, job.token, [], [], replay=done))).accepted
    assert await record_count(plane, topic) == 3


# ── sealing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sequence_is_sealed_when_its_agent_is_gone_or_it_is_old() -> None:
    record = SequenceRecord("agent-a", 0, 1_000_000)
    assert should_seal(record, False, 1_000_000, 60.0)
    assert not should_seal(record, True, 1_000_000 + 119_999, 60.0)
    assert should_seal(record, True, 1_000_000 + 120_000, 60.0)


async def test_a_replay_that_left_files_out_is_not_believed(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    await agent.put(file(topic, 0))
    await plane.service.journals.plan_once()
    await agent.do(plane.service, await plane.service.take_job(TakeJob("agent", [SCAN])))
    job = await plane.service.take_job(TakeJob("agent", [REPLAY]))
    done = ReplayDone("agent-a", 0, True, [0, 1], [1])
    verdict = await plane.service.complete_job(CompleteJob(job.job_id, job.token, [], [], replay=done))
    assert not verdict.accepted
    assert plane.service.journals.scans_replayed == 0
    await plane.service.journals.plan_once()
    await agent.work()
    assert plane.service.journals.scans_replayed > 0
    assert await record_count(plane, topic) == 1


async def test_a_sequence_with_an_empty_slot_below_others_is_not_sealed(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    await plane.service.commit_object(file(topic, 0))
    await plane.service.commit_object(file(topic, 2))
    await plane.service.journals.plan_once()
    await agent.do(plane.service, await plane.service.take_job(TakeJob("agent", [SCAN])))
    job = await plane.service.take_job(TakeJob("agent", [REPLAY]))
    done = ReplayDone("agent-a", 0, True, [0, 2], [])
    verdict = await plane.service.complete_job(CompleteJob(job.job_id, job.token, [], [], replay=done))
    assert not verdict.accepted


async def test_a_writer_may_end_its_sequence_itself(plane: Plane, agent: ReplayingAgent, topic: TopicInfo) -> None:
    await register(plane)
    await plane.service.commit_object(file(topic, 0))
    await plane.service.end_sequence(EndSequence("agent-a", 0, 2))
    assert not plane.service.journals.sequences.records["agent-a", 0].is_complete
    await plane.service.commit_object(file(topic, 1))
    assert plane.service.journals.sequences.records["agent-a", 0].is_complete
    await plane.service.journals.plan_once()
    assert await agent.work() == 1


async def test_an_agent_paused_while_its_sequence_is_sealed_writes_nothing_that_is_lost(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    """Its file is there, and not acknowledged: the sealer finds it. The next one finds a fence."""
    await agent.put(file(topic, 0))
    await plane.service.journals.plan_once()
    await agent.work()
    assert await record_count(plane, topic) == 1
    assert journal_key("agent-a", 0, 1) in plane.keys
    # Awake, it commits what it had put before: nothing happens. What it could not put goes to a new sequence.
    assert (await plane.service.commit_object(file(topic, 0))).extents == []
    assert len((await plane.service.commit_object(file(topic, 0, sequence=1))).extents) == 1
    assert await record_count(plane, topic) == 2


# ── how far everything is sequenced ───────────────────────────────────────────────────────────────────────────────────


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
    await agent.do(plane.service, await plane.service.take_job(TakeJob("agent", [SCAN])))
    assert await replayed() < asked.scan
    assert plane.service.journals.is_behind()
    # What is asked for while a scan is under way needs another one.
    again = await plane.service.request_scan(RequestScan("agent-a"))
    assert again.scan > asked.scan
    await agent.work()
    assert await replayed() >= again.scan
    assert not plane.service.journals.is_behind()
    assert await record_count(plane, topic) == 1


async def test_a_replay_that_fails_is_planned_again(plane: Plane, agent: ReplayingAgent, topic: TopicInfo) -> None:
    await agent.put(file(topic, 0))
    await plane.service.journals.plan_once()
    await agent.do(plane.service, await plane.service.take_job(TakeJob("agent", [SCAN])))
    for _ in range(5):
        assert (await plane.service.take_job(TakeJob("agent", [REPLAY]))).job_id
        plane.clock.advance(SETTINGS.jobs.lease_s + 1)
        await plane.service.jobs.expire_once()
    await plane.service.journals.plan_once()
    await agent.work()
    assert await record_count(plane, topic) == 1


async def restart(plane: Plane, tmp_path: Path) -> None:
    await plane.service.close()
    again = await start_plane(
        f"sqlite://{tmp_path}/metadata.db", clock=plane.clock, bucket=plane.bucket, settings=SETTINGS
    )
    plane.service, plane.metadata = again.service, again.metadata


async def test_scans_and_replays_survive_a_restart(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo, tmp_path: Path
) -> None:
    await agent.put(file(topic, 0))
    asked = await plane.service.request_scan(RequestScan("agent-a"))
    await agent.do(plane.service, await plane.service.take_job(TakeJob("agent", [SCAN])))
    await restart(plane, tmp_path)
    assert plane.service.journals.scans_replayed == 0
    await agent.work()
    assert await record_count(plane, topic) == 1
    await plane.service.journals.plan_once()
    await agent.work()
    assert plane.service.journals.scans_replayed >= asked.scan


async def test_a_classic_gap_is_told_when_a_scan_that_began_after_it_was_replayed(
    plane: Plane, agent: ReplayingAgent
) -> None:
    journals = plane.service.journals
    gap, another = (7, 0, 1, 5), (8, 0, 1, 5)
    assert not journals.asks_for_scan(gap), "nobody journals what is classic"
    await plane.service.register_agent(RegisterAgent("agent-a", "127.0.0.1", 9092, "", journals=True))
    assert journals.asks_for_scan(gap)
    await journals.plan_once()
    assert journals.asks_for_scan(gap)
    await agent.work()
    assert not journals.asks_for_scan(gap)
    assert journals.asks_for_scan(another)


async def test_a_topic_that_becomes_classic_is_behind_until_its_journals_are_replayed(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    assert not plane.service.journals.is_behind()
    change = ConfigChange("braidlog.topic.type", 0, "classic")
    await plane.service.alter_configs(AlterConfigs(2, topic.name, [change]))
    assert plane.service.journals.is_behind()
    await agent.work()
    assert not plane.service.journals.is_behind()


def test_a_scan_is_replayed_when_all_that_it_found_was_replayed_after_it() -> None:
    needs = ReplayNeeds()
    first, second = ("agent-a", 0), ("agent-b", 0)
    needs.scan_asked(5, 1000)
    needs.scan_ended(5, [first, second])
    needs.sequence_replayed(first, 5)
    assert (needs.replayed_scan, needs.replayed_ms) == (0, 0)
    needs.scan_asked(6, 2000)
    needs.scan_ended(6, [first, second])
    # This job was planned before the second scan.
    needs.sequence_replayed(second, 5)
    assert (needs.replayed_scan, needs.replayed_ms) == (5, 1000)
    needs.sequence_complete(first)
    assert needs.needed == [second]
    needs.sequence_replayed(second, 6)
    assert (needs.replayed_scan, needs.replayed_ms) == (6, 2000)


# ── sweeping and closing ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_unsequenced_file_is_never_swept(plane: Plane, agent: ReplayingAgent, topic: TopicInfo) -> None:
    await agent.put(file(topic, 0))
    for _ in range(SETTINGS.grace_epochs + 5):
        await plane.service.epochs.advance()
    plane.clock.advance(2 * SETTINGS.full_sweep_interval_s)
    await plane.service.sweeper.run_once()
    await plane.service.journal_closer.run_once()
    assert len(plane.keys) == 1
    assert not plane.service.journal_closer.may_delete(plane.keys[0])


async def test_a_sequence_is_closed_when_nothing_points_to_it_and_nothing_of_it_comes_back(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo, tmp_path: Path
) -> None:
    files = [file(topic, slot) for slot in range(3)]
    for made in files:
        await agent.put(made)
    await plane.service.journals.plan_once()
    await agent.work()
    assert len(plane.keys) == 3 + SLOTS_IN_FLIGHT_MAX
    plane.clock.advance(300)
    await plane.service.sweeper.run_once()
    assert await plane.service.journal_closer.run_once() == 0
    await plane.service.delete_records(DeleteRecords(topic.partition_ids[0], -1))
    plane.clock.advance(61)
    assert (await plane.service.sweeper.run_once()).unreferenced_count == 3
    assert len(plane.keys) == SLOTS_IN_FLIGHT_MAX
    assert await plane.service.journal_closer.run_once() == 1
    assert plane.keys == []
    for _ in range(SETTINGS.grace_epochs + 5):
        await plane.service.epochs.advance()
    await plane.service.sweeper.run_once()
    assert await plane.metadata.read(lambda tx: tx.query("SELECT * FROM objects")) == []
    for _ in range(2):
        await plane.service.close()
        again = await start_plane(
            f"sqlite://{tmp_path}/metadata.db", clock=plane.clock, bucket=plane.bucket, settings=SETTINGS
        )
        plane.service, plane.metadata = again.service, again.metadata
        # A process that slept brings a file again, of which no row is left.
        assert (await plane.service.commit_object(files[1])).extents == []
        assert await record_count(plane, topic) == 3
        assert plane.service.journals.sequences.known_below() == {"agent-a": 1}


async def test_a_file_that_lands_when_its_sequence_is_closed_goes_with_the_next_full_sweep(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo, tmp_path: Path
) -> None:
    await plane.service.end_sequence(EndSequence("agent-a", 0, 0))
    plane.clock.advance(241)
    assert await plane.service.journal_closer.run_once() == 1
    await agent.put(file(topic, 0))
    await agent.put(file(topic, 0, sequence=1))
    assert await plane.service.journal_closer.run_once() == 0
    assert len(plane.keys) == 2
    for _ in range(2):  # whoever is restarted more often than the sweep is due still does it
        plane.clock.advance(SETTINGS.full_sweep_interval_s / 2)
        await restart(plane, tmp_path)
    await plane.service.journal_closer.run_once()
    assert plane.keys == [journal_key("agent-a", 1, 0)]


async def test_fences_stay_until_no_sleeper_can_write_there(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    await agent.put(fence(0))
    await plane.service.journals.plan_once()
    await agent.work()
    assert plane.service.journals.statistics().complete_sequences == 1
    plane.clock.advance(239)
    assert await plane.service.journal_closer.run_once() == 0
    plane.clock.advance(2)
    assert await plane.service.journal_closer.run_once() == 1
    assert plane.keys == []


async def test_sequences_closed_out_of_order_are_remembered(plane: Plane, topic: TopicInfo) -> None:
    sequences = plane.service.journals.sequences
    for number in (0, 1, 2, 4):
        await plane.service.end_sequence(EndSequence("agent-a", number, 0 if number != 1 else 5))
    plane.clock.advance(241)
    assert await plane.service.journal_closer.run_once() == 3
    assert sequences.closed == {"agent-a": ((0, 1), (2, 3), (4, 5))}
    assert sequences.known_below() == {"agent-a": 3}
    assert not sequences.is_sequenced(("agent-a", 1), 0)
    assert sequences.is_sequenced(("agent-a", 4), 17)


# ── pace ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_replays_are_paced_and_live_commits_are_not(tmp_path: Path) -> None:
    settings = ControlSettings(journals=JournalSettings(replay_files_per_s=1.0))
    plane = await start_plane(f"sqlite://{tmp_path}/metadata.db", settings=settings)
    try:
        topic = await create_topic(plane.service, **LIGHTNING)
        slow = [file(topic, slot) for slot in range(10)]
        replayed = [CommitObject(each.key, each.size, each.footer, True) for each in slow]
        await plane.service.commit_object(replayed[0])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await plane.service.commit_object(replayed[1])
        await plane.service.commit_object(file(topic, 0, sequence=1))
        for made in replayed[2:6]:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await plane.service.commit_object(made)
        with pytest.raises(ControlUnavailable):
            await plane.service.commit_object(replayed[6])
    finally:
        await plane.service.close()


async def test_a_result_of_another_kind_is_refused(plane: Plane, topic: TopicInfo) -> None:
    await plane.service.journals.plan_once()
    job = await plane.service.take_job(TakeJob("agent", [SCAN]))
    assert not (await plane.service.complete_job(CompleteJob(job.job_id, job.token, [], []))).accepted
    await plane.service.journals.plan_once()
    job = await plane.service.take_job(TakeJob("agent", [SCAN]))
    done = ScanDone([SequenceName("agent-a", 0)])
    assert (await plane.service.complete_job(CompleteJob(job.job_id, job.token, [], [], scan=done))).accepted
    job = await plane.service.take_job(TakeJob("agent", [REPLAY]))
    other = ReplayDone("agent-b", 0, False, [])
    assert not (await plane.service.complete_job(CompleteJob(job.job_id, job.token, [], [], replay=other))).accepted


def test_a_number_that_no_scan_has_is_not_replayed_before_the_next_one_that_has_it() -> None:
    """After a restart numbers go on a block higher: who was promised the next one waits for the one that came."""
    needs = ReplayNeeds()
    needs.scan_asked(1001, 10)
    needs.scan_ended(1001, [("a", 0)])
    assert needs.replayed_scan == 0
    needs.scan_asked(2001, 20)
    needs.scan_ended(2001, [("a", 0), ("a", 1)])
    needs.sequence_replayed(("a", 0), 1001)
    assert needs.replayed_scan == 1001
    assert needs.replayed_ms == 10
    needs.sequence_replayed(("a", 0), 2001)
    assert needs.replayed_scan == 1001
    needs.sequence_complete(("a", 1))
    assert needs.replayed_scan == 2001


async def test_figures_for_prometheus(plane: Plane, agent: ReplayingAgent, topic: TopicInfo) -> None:
    registry = CollectorRegistry()
    registry.register(JournalMeters(plane.service.journals))
    await agent.put(file(topic, 0))
    await plane.service.commit_object(file(topic, 1))
    assert registry.get_sample_value("braidlog_control_journal_files_total", {"path": "fast"}) == 1
    assert registry.get_sample_value("braidlog_control_journal_unreplayed_files") == 1
    await plane.service.journals.plan_once()
    await agent.work()
    assert registry.get_sample_value("braidlog_control_journal_files_total", {"path": "slow"}) == 1
    assert registry.get_sample_value("braidlog_control_journal_unreplayed_files") == 0
    assert registry.get_sample_value("braidlog_control_journal_complete_sequences") == 1
