"""Journals: scans find them, replays have them sequenced, and gaps are given up after a while."""

from pathlib import Path

import msgspec
import pytest
from tests.control.driver import Plane, batch, create_topic, find_job, new_producer, start_plane, take_job
from tests.control.journals.driver import (
    LIGHTNING,
    SETTINGS,
    Journal,
    ReplayingAgent,
    file,
    journal_file,
    record_count,
    register,
    replay_all,
)

from braidlog.control.interface import (
    ABANDONED,
    REPLAY,
    SCAN,
    WAITS_FOR_BATCH,
    WAITS_FOR_JOURNALS,
    BatchVerdict,
    CompleteJob,
    DescribeJournals,
    EndSequence,
    FailJob,
    ListJobs,
    RegisterAgent,
    ReplayDone,
    RequestScan,
    ScanDone,
    SequenceName,
    TopicInfo,
)
from braidlog.control.journals import journals
from braidlog.control.journals.journals import should_seal
from braidlog.control.journals.sequences import JournalSequenceRecord
from braidlog.objects.keys import SLOTS_IN_FLIGHT_MAX, SLOTS_PER_SEQUENCE_MAX, journal_key

HELD = BatchVerdict(0, -1, held=True)


async def test_a_gap_is_given_up_after_a_while_and_what_arrives_late_is_appended(
    plane: Plane, journal: Journal
) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 0))
    await journal.commit(batch(1, pid, 0, 5))
    plane.clock.advance(30)
    await journal.commit(batch(1, pid, 0, 3))
    await replay_all(plane)
    assert await plane.service.parts.journals.give_up_once() == 0
    plane.clock.advance(31)
    # What waits longest has waited enough, and so has what comes before it.
    await plane.service.parts.journals.give_up_once()
    assert await journal.log() == [(0, 0), (0, 3), (0, 5)]
    assert await journal.commit(batch(1, pid, 0, 6)) == [BatchVerdict(0, 3)]
    for late in (4, 1, 2):
        [verdict] = await journal.commit(batch(1, pid, 0, late))
        assert verdict.base_offset >= 4
    assert await journal.commit(batch(1, pid, 0, 4)) == [BatchVerdict(0, -1, True)]
    figures = plane.service.parts.journals.statistics()
    assert (figures.gaps_given_up, figures.late_batches, figures.held_batches) == (2, 3, 0)


async def test_no_gap_is_given_up_while_a_journal_of_before_is_not_replayed(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    agent = ReplayingAgent(plane)
    await agent.put(journal_file([(journal.topic.topic_id, 0, [batch(1, pid, 0, 0)])], 0, incarnation="agent-b"))
    journal.files.update({"journal/agent-b/0000000000/0000000000": journal.file(batch(1, pid, 0, 0))})
    assert await journal.commit(batch(1, pid, 0, 1)) == [HELD]
    plane.clock.advance(120)
    assert await plane.service.parts.journals.give_up_once() == 0
    await replay_all(plane)
    assert await journal.log() == [(0, 0), (0, 1)]
    assert plane.service.parts.journals.statistics().gaps_given_up == 0


async def test_where_nobody_replays_anything_a_gap_is_given_up_in_the_end(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 1))
    plane.clock.advance(179)
    assert await plane.service.parts.journals.give_up_once() == 0
    plane.clock.advance(1)
    assert await plane.service.parts.journals.give_up_once() == 1
    assert await journal.log() == [(0, 1)]


async def test_where_no_agent_is_there_a_batch_waits_for_one_and_at_last_no_longer(plane: Plane) -> None:
    journal = Journal(plane, await create_topic(plane.service, "events", 2, **LIGHTNING))
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 1))
    plane.clock.advance(599)
    assert await plane.service.parts.journals.give_up_once() == 0
    plane.clock.advance(1)
    assert await plane.service.parts.journals.give_up_once() == 1


async def test_while_something_comes_of_replays_a_batch_waits(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 1))
    for number in range(5):
        plane.clock.advance(100)
        found = journal_file([(journal.topic.topic_id, 1, [batch()])], number, incarnation="agent-b")
        await plane.service.commit_object(msgspec.structs.replace(found, replayed=True))
        assert await plane.service.parts.journals.give_up_once() == 0
    plane.clock.advance(100)
    assert await plane.service.parts.journals.give_up_once() == 1


async def test_a_sequence_that_cannot_be_replayed_keeps_nothing_waiting(plane: Plane, journal: Journal) -> None:
    """One of its files is damaged. Five times somebody tries."""
    pid = await new_producer(plane.service)
    agent = ReplayingAgent(plane)
    damaged = journal_file([(journal.topic.topic_id, 0, [batch()])], 0, incarnation="agent-b")
    await agent.put(damaged)
    await journal.commit(batch(1, pid, 0, 1))
    plane.clock.advance(1)
    await plane.service.request_scan(RequestScan("test"))
    while (job := await find_job(plane.service, "agent", [SCAN, REPLAY])) is not None:
        if job.task.replay is not None and job.task.replay.incarnation == "agent-b":
            await plane.service.fail_job(FailJob(job.job_id, job.token, "a file is damaged"))
        else:
            assert (await agent.do(plane.service, job)).accepted
    described = await plane.service.describe_journals(DescribeJournals())
    assert described.statistics.replayed_ms == 0  # not for those who must know that nothing is left
    assert (described.held_waits_for, described.untried_sequences) == (WAITS_FOR_BATCH, 0)
    assert described.held_until_ms - described.oldest_held_ms == 60_000
    plane.clock.advance(59)
    assert await plane.service.parts.journals.give_up_once() == 1
    assert await journal.log() == [(0, 1)]


async def test_what_a_held_batch_waits_for_is_told(plane: Plane, journal: Journal) -> None:
    assert (await plane.service.describe_journals(DescribeJournals())).held_waits_for == ""
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 1))
    described = await plane.service.describe_journals(DescribeJournals())
    assert described.held_waits_for == WAITS_FOR_JOURNALS
    assert described.held_until_ms - described.oldest_held_ms == 180_000
    await replay_all(plane)
    described = await plane.service.describe_journals(DescribeJournals())
    assert described.held_waits_for == WAITS_FOR_BATCH
    assert described.held_until_ms - described.oldest_held_ms == 60_000


async def test_what_nobody_has_told_of_is_found_and_sequenced(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    for slot in range(3):
        await agent.put(file(topic, slot))
    await agent.put(file(topic, 0, sequence=1))
    await plane.service.parts.journals.plan_once()
    assert await agent.work() == 3
    assert await record_count(plane, topic) == 4
    figures = plane.service.parts.journals.statistics()
    assert (figures.slow_files, figures.fast_files) == (4, 0)
    assert (figures.complete_sequences, figures.open_sequences) == (2, 0)
    assert agent.sealed == 2 * SLOTS_IN_FLIGHT_MAX


async def test_without_journals_nothing_is_looked_for(plane: Plane, agent: ReplayingAgent) -> None:
    await create_topic(plane.service)
    await plane.service.parts.journals.plan_once()
    assert await agent.work() == 0
    await plane.service.register_agent(RegisterAgent("agent-a", "127.0.0.1", 9092, "", journals=True))
    await plane.service.parts.journals.plan_once()
    assert await agent.work() == 1
    assert not plane.service.parts.jobs.has_open


async def test_one_scan_at_a_time_and_none_of_them_is_kept(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    for _ in range(3):
        await plane.service.parts.journals.plan_once()
    assert [job.kind for job in (await plane.service.list_jobs(ListJobs())).jobs] == [SCAN]
    assert not plane.service.parts.jobs.has_open  # nothing that a pipeline would have to do
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
            plane.service.parts.journals.sequences.put(
                [
                    (
                        plane.service.parts.journals.sequences.records.get(("agent-a", sequence))
                        or JournalSequenceRecord("agent-a", sequence, plane.clock.wall_ms())
                    ).with_slots([slot])
                ]
            )
    await plane.service.parts.journals.plan_once()
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
    await plane.service.parts.journals.plan_once()
    await agent.work()
    assert agent.gets == 2
    assert agent.sealed == 0
    assert await record_count(plane, topic) == 10
    described = await plane.service.describe_journals(DescribeJournals())
    assert [(each.state, each.watermark, each.is_live) for each in described.sequences] == [("open", 10, True)]
    # The next scan only lists.
    await plane.service.parts.journals.plan_once()
    await agent.work()
    assert agent.gets == 2


async def test_a_sequence_that_its_live_agent_has_left_is_sealed_at_once(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    await register(plane)
    await agent.put(file(topic, 0))
    await plane.service.end_sequence(EndSequence("agent-a", 0, ABANDONED))
    await plane.service.parts.journals.plan_once()
    await agent.work()
    assert agent.sealed == SLOTS_IN_FLIGHT_MAX
    assert await record_count(plane, topic) == 1
    described = await plane.service.describe_journals(DescribeJournals())
    assert [(each.state, each.is_live) for each in described.sequences] == [("complete", True)]


async def test_the_fast_and_the_slow_path_may_race(plane: Plane, agent: ReplayingAgent, topic: TopicInfo) -> None:
    await register(plane)
    files = [file(topic, slot) for slot in range(3)]
    for made in files:
        await agent.put(made)
    await plane.service.parts.journals.plan_once()
    job = await take_job(plane.service, "agent", [SCAN])
    await agent.do(plane.service, job)
    job = await take_job(plane.service, "agent", [REPLAY])
    assert job.task.replay is not None
    for made in files[:2]:
        await plane.service.commit_object(made)
    done = await agent.replay(plane.service, job.task.replay)
    await plane.service.commit_object(files[2])
    assert (await plane.service.complete_job(CompleteJob(job.job_id, job.token, [], [], replay=done))).accepted
    assert await record_count(plane, topic) == 3


def test_a_sequence_is_sealed_when_its_agent_is_gone_or_it_is_old() -> None:
    record = JournalSequenceRecord("agent-a", 0, 1_000_000)
    assert should_seal(record, False, 1_000_000, 60.0)
    assert not should_seal(record, True, 1_000_000 + 119_999, 60.0)
    assert should_seal(record, True, 1_000_000 + 120_000, 60.0)


async def test_a_replay_that_left_files_out_is_not_believed(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    await agent.put(file(topic, 0))
    await plane.service.parts.journals.plan_once()
    await agent.do(plane.service, await take_job(plane.service, "agent", [SCAN]))
    job = await take_job(plane.service, "agent", [REPLAY])
    done = ReplayDone("agent-a", 0, True, [0, 1], [1])
    verdict = await plane.service.complete_job(CompleteJob(job.job_id, job.token, [], [], replay=done))
    assert not verdict.accepted
    assert plane.service.parts.journals.backlog.scans_replayed == 0
    await plane.service.parts.journals.plan_once()
    await agent.work()
    assert plane.service.parts.journals.backlog.scans_replayed > 0
    assert await record_count(plane, topic) == 1


async def test_a_sequence_with_an_empty_slot_below_others_is_not_sealed(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    await plane.service.commit_object(file(topic, 0))
    await plane.service.commit_object(file(topic, 2))
    await plane.service.parts.journals.plan_once()
    await agent.do(plane.service, await take_job(plane.service, "agent", [SCAN]))
    job = await take_job(plane.service, "agent", [REPLAY])
    done = ReplayDone("agent-a", 0, True, [0, 2], [])
    verdict = await plane.service.complete_job(CompleteJob(job.job_id, job.token, [], [], replay=done))
    assert not verdict.accepted


async def test_a_writer_may_end_its_sequence_itself(plane: Plane, agent: ReplayingAgent, topic: TopicInfo) -> None:
    await register(plane)
    await plane.service.commit_object(file(topic, 0))
    await plane.service.end_sequence(EndSequence("agent-a", 0, 2))
    assert not plane.service.parts.journals.sequences.records["agent-a", 0].is_complete
    await plane.service.commit_object(file(topic, 1))
    assert plane.service.parts.journals.sequences.records["agent-a", 0].is_complete
    await plane.service.parts.journals.plan_once()
    assert await agent.work() == 1


async def test_an_agent_paused_while_its_sequence_is_sealed_writes_nothing_that_is_lost(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    """Its file is there, and not acknowledged: the sealer finds it. The next one finds a fence."""
    await agent.put(file(topic, 0))
    await plane.service.parts.journals.plan_once()
    await agent.work()
    assert await record_count(plane, topic) == 1
    assert journal_key("agent-a", 0, 1) in plane.keys
    # Awake, it commits what it had put before: nothing happens. What it could not put goes to a new sequence.
    assert (await plane.service.commit_object(file(topic, 0))).extents == []
    assert len((await plane.service.commit_object(file(topic, 0, sequence=1))).extents) == 1
    assert await record_count(plane, topic) == 2


async def test_a_replay_that_fails_is_planned_again(plane: Plane, agent: ReplayingAgent, topic: TopicInfo) -> None:
    await agent.put(file(topic, 0))
    await plane.service.parts.journals.plan_once()
    await agent.do(plane.service, await take_job(plane.service, "agent", [SCAN]))
    for _ in range(5):
        assert await find_job(plane.service, "agent", [REPLAY]) is not None
        plane.clock.advance(SETTINGS.jobs.lease_s + 1)
        await plane.service.parts.job_results.expire_once()
    await plane.service.parts.journals.plan_once()
    await agent.work()
    assert await record_count(plane, topic) == 1


async def test_sequences_that_cannot_be_replayed_let_others_go_first(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "REPLAYS_AT_ONCE_MAX", 1)
    for incarnation in ("damaged", "sound"):
        await agent.put(journal_file([(topic.topic_id, 0, [batch()])], 0, incarnation=incarnation))
    await plane.service.request_scan(RequestScan("test"))
    replayed: list[str] = []
    for _ in range(3):
        while (job := await find_job(plane.service, "agent", [SCAN, REPLAY])) is not None:
            replay = job.task.replay
            if replay is not None and replay.incarnation == "damaged":
                await plane.service.fail_job(FailJob(job.job_id, job.token, "a file is damaged"))
            else:
                assert (await agent.do(plane.service, job)).accepted
                replayed += [replay.incarnation] if replay is not None else []
        await plane.service.parts.journals.plan_once()
    assert "sound" in replayed


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
    await agent.do(plane.service, await take_job(plane.service, "agent", [SCAN]))
    await restart(plane, tmp_path)
    assert plane.service.parts.journals.backlog.scans_replayed == 0
    await agent.work()
    assert await record_count(plane, topic) == 1
    await plane.service.parts.journals.plan_once()
    await agent.work()
    assert plane.service.parts.journals.backlog.scans_replayed >= asked.scan


async def test_a_result_of_another_kind_is_refused(plane: Plane, topic: TopicInfo) -> None:
    await plane.service.parts.journals.plan_once()
    job = await take_job(plane.service, "agent", [SCAN])
    assert not (await plane.service.complete_job(CompleteJob(job.job_id, job.token, [], []))).accepted
    await plane.service.parts.journals.plan_once()
    job = await take_job(plane.service, "agent", [SCAN])
    done = ScanDone([SequenceName("agent-a", 0)])
    assert (await plane.service.complete_job(CompleteJob(job.job_id, job.token, [], [], scan=done))).accepted
    job = await take_job(plane.service, "agent", [REPLAY])
    other = ReplayDone("agent-b", 0, False, [])
    assert not (await plane.service.complete_job(CompleteJob(job.job_id, job.token, [], [], replay=other))).accepted


async def test_a_restart_does_not_wait_for_those_who_had_jobs_before_it(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo, tmp_path: Path
) -> None:
    """They may have died together with the control plane. If not, they hear that their job is not theirs any more."""
    await agent.put(file(topic, 0))
    await plane.service.parts.journals.plan_once()
    lost = await take_job(plane.service, "agent", [SCAN])
    await plane.service.close()
    again = await start_plane(
        f"sqlite://{tmp_path}/metadata.db", clock=plane.clock, bucket=plane.bucket, settings=SETTINGS
    )
    plane.service, plane.metadata = again.service, again.metadata
    late = CompleteJob(lost.job_id, lost.token, [], [], scan=ScanDone([]))
    assert not (await plane.service.complete_job(late)).accepted
    assert await agent.work() == 2
    assert await record_count(plane, topic) == 1


async def test_a_scan_does_not_wait_for_replays(plane: Plane, agent: ReplayingAgent, topic: TopicInfo) -> None:
    for number in range(3):
        await agent.put(file(topic, 0, incarnation=f"agent-{number}"))
    await plane.service.parts.journals.plan_once()
    scan = await take_job(plane.service, "agent", [SCAN, REPLAY])
    assert (await agent.do(plane.service, scan)).accepted
    await plane.service.parts.journals.plan_once()
    job = await take_job(plane.service, "agent", [SCAN, REPLAY])
    assert job.task.kind == SCAN
