"""Journaled files in the control plane: every record once, in the order of its producer, whatever comes when."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.control.driver import Plane, batch, commit, create_topic, make_object, new_producer, start_plane
from tests.control.journal_driver import LIGHTNING, ReplayingAgent, fence, journal_file, read_log

from braidlog.control.interface import (
    BatchVerdict,
    CommitObject,
    DeleteTopics,
    FeedRequest,
    FenceAgent,
    ObjectSequenced,
    RegisterAgent,
    RequestScan,
    SnapshotRequest,
    TopicInfo,
    TopicRef,
)
from braidlog.control.journal_settings import JournalSettings
from braidlog.control.settings import ControlSettings
from braidlog.objects.layout import BatchEntry
from braidlog.records.batch import TRANSACTIONAL_BIT
from braidlog.runtime.limits import PRODUCER_IDS_OF_AGENTS_FROM

SETTINGS = ControlSettings(
    grace_epochs=2,
    session_timeout_s=10**6,
    producer_expiration_s=3600.0,
    journals=JournalSettings(gap_s=60.0, gap_s_max=600.0, held_batches_max=20, replay_files_per_s=0),
)
HELD = BatchVerdict(0, -1, held=True)


class Journal:
    """One agent's sequence, committed file by file."""

    def __init__(self, plane: Plane, topic: TopicInfo, incarnation: str = "agent-a") -> None:
        self.plane = plane
        self.topic = topic
        self.incarnation = incarnation
        self.slot = 0
        self.files: dict[str, CommitObject] = {}

    def file(self, *batches: BatchEntry, partition: int = 0) -> CommitObject:
        extents = [(self.topic.topic_id, partition, batches)]
        made = journal_file(extents, self.slot, incarnation=self.incarnation)
        self.slot += 1
        self.files[made.key] = made
        return made

    async def commit(self, *batches: BatchEntry, partition: int = 0) -> list[BatchVerdict]:
        verdict = await self.plane.service.commit_object(self.file(*batches, partition=partition))
        assert verdict.error_code == 0, verdict
        return verdict.extents[0].verdicts

    async def log(self, partition: int = 0) -> list[tuple[int, int]]:
        """Epoch and sequence of each batch, by offset."""
        found = await read_log(self.plane.service, self.topic.partition_ids[partition], self.files)
        return [(each.producer_epoch, each.base_sequence) for each in found]


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    plane = await start_plane(f"sqlite://{tmp_path}/metadata.db", settings=SETTINGS)
    yield plane
    await plane.service.close()


@pytest.fixture
async def journal(plane: Plane) -> Journal:
    await plane.service.register_agent(RegisterAgent("agent-a", "127.0.0.1", 9092, ""))
    return Journal(plane, await create_topic(plane.service, "events", 2, **LIGHTNING))


async def restarted(plane: Plane, tmp_path: Path) -> Plane:
    await plane.service.close()
    again = await start_plane(
        f"sqlite://{tmp_path}/metadata.db", clock=plane.clock, bucket=plane.bucket, settings=SETTINGS
    )
    plane.service, plane.metadata = again.service, again.metadata
    return plane


async def replay_all(plane: Plane) -> None:
    """So that the control plane knows that nothing is left to replay."""
    await plane.service.request_scan(RequestScan("test"))
    await ReplayingAgent(plane).work()


# ── what becomes of a batch ───────────────────────────────────────────────────────────────────────────────────────────


async def test_batches_behind_a_gap_are_held_until_it_is_filled(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    assert await journal.commit(batch(1, pid, 0, 0)) == [BatchVerdict(0, 0)]
    assert await journal.commit(batch(1, pid, 0, 2)) == [HELD]
    assert await journal.commit(batch(1, pid, 0, 3), batch(1)) == [HELD, BatchVerdict(0, 1)]
    assert await journal.commit(batch(1, pid, 0, 2)) == [BatchVerdict(0, -1, True)]
    assert await journal.log() == [(0, 0), (-1, -1)]
    assert await journal.commit(batch(1, pid, 0, 1)) == [BatchVerdict(0, 2)]
    assert plane.service.journals.statistics().held_batches == 0
    assert await journal.commit(batch(1, pid, 0, 4)) == [BatchVerdict(0, 5)]
    assert await journal.commit(batch(1, pid, 0, 3)) == [BatchVerdict(0, 4, True)]
    assert await journal.log() == [(0, 0), (-1, -1), (0, 1), (0, 2), (0, 3), (0, 4)]


async def test_one_file_may_hold_release_and_follow(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    verdicts = await journal.commit(*(batch(1, pid, 0, sequence) for sequence in (0, 3, 2, 1, 4)))
    assert verdicts == [BatchVerdict(0, 0), HELD, HELD, BatchVerdict(0, 1), HELD]
    assert await journal.log() == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]


async def test_a_gap_in_one_partition_holds_nothing_in_another(plane: Plane, journal: Journal) -> None:
    pid, other = await new_producer(plane.service), await new_producer(plane.service)
    assert await journal.commit(batch(1, pid, 0, 1)) == [HELD]
    assert await journal.commit(batch(1, pid, 0, 0), partition=1) == [BatchVerdict(0, 0)]
    assert await journal.commit(batch(1, other, 0, 0)) == [BatchVerdict(0, 0)]


async def test_a_duplicate_far_behind_is_proven_and_not_guessed(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    for sequence in range(30):
        await journal.commit(batch(1, pid, 0, sequence))
    assert await journal.commit(batch(1, pid, 0, 3)) == [BatchVerdict(0, -1, True)]
    assert plane.service.journals.statistics().duplicate_batches == 1
    assert len(await journal.log()) == 30


async def test_a_producer_that_nobody_knows_may_start_anywhere(plane: Plane, journal: Journal) -> None:
    assert await journal.commit(batch(1, 777, 0, 50)) == [BatchVerdict(0, 0)]
    assert await journal.commit(batch(1, 777, 0, 49)) == [BatchVerdict(0, 1)]
    assert await journal.commit(batch(1, 777, 0, 49)) == [BatchVerdict(0, -1, True)]
    # One whose id an agent has given out has begun with nothing.
    assert await journal.commit(batch(1, PRODUCER_IDS_OF_AGENTS_FROM + 5, 0, 1)) == [HELD]


async def test_an_older_epoch_replayed_after_a_newer_one_is_appended_once(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 0))
    await journal.commit(batch(1, pid, 1, 0))
    assert await journal.commit(batch(1, pid, 0, 1)) == [BatchVerdict(0, 2)]
    assert await journal.commit(batch(1, pid, 0, 1)) == [BatchVerdict(0, -1, True)]
    assert await journal.commit(batch(1, pid, 0, 0)) == [BatchVerdict(0, -1, True)]
    assert plane.service.journals.statistics().older_epoch_batches == 1
    assert await journal.log() == [(0, 0), (1, 0), (0, 1)]


async def test_an_older_epoch_keeps_its_order_behind_a_newer_one(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 2, 0))
    assert await journal.commit(batch(1, pid, 0, 1)) == [HELD]
    assert await journal.commit(batch(1, pid, 2, 2)) == [HELD]
    # What waits of an older epoch keeps nothing waiting of one that has begun, but one that has not.
    assert await journal.commit(batch(1, pid, 3, 0)) == [HELD]
    assert await journal.commit(batch(1, pid, 2, 1)) == [BatchVerdict(0, 1)]
    assert await journal.log() == [(2, 0), (2, 1), (2, 2)]
    await journal.commit(batch(1, pid, 0, 0))
    assert await journal.log() == [(2, 0), (2, 1), (2, 2), (0, 0), (0, 1), (3, 0)]


async def test_a_newer_epoch_waits_for_what_waits_of_the_older_one(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 0))
    assert await journal.commit(batch(1, pid, 0, 2)) == [HELD]
    assert await journal.commit(batch(1, pid, 1, 0)) == [HELD]
    await journal.commit(batch(1, pid, 0, 1))
    assert await journal.log() == [(0, 0), (0, 1), (0, 2), (1, 0)]


async def test_batches_of_a_deleted_topic_are_dropped_and_counted(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    assert await journal.commit(batch(1, pid, 0, 1)) == [HELD]
    await plane.service.delete_topics(DeleteTopics([TopicRef("events", None)]))
    verdict = await plane.service.commit_object(journal.file(batch(1, pid, 0, 0)))
    assert (verdict.error_code, verdict.extents[0].verdicts[0].error_code) == (0, 100)
    await plane.service.journals.give_up_once()
    figures = plane.service.journals.statistics()
    assert (figures.dropped_batches, figures.held_batches) == (2, 0)
    rows = await plane.metadata.read(lambda tx: tx.query("SELECT live_count FROM objects"))
    assert rows == [(0,), (0,)]


async def test_no_journal_has_batches_of_transactions(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    [verdict] = await journal.commit(batch(1, pid, 0, 0, attributes=TRANSACTIONAL_BIT))
    assert verdict == BatchVerdict(87, -1)


async def test_acknowledged_order_is_kept_for_idempotent_producers_and_for_no_others(
    plane: Plane, journal: Journal
) -> None:
    """The first of two files was acknowledged, and then its agent died: a replay brings it after the second."""
    plain = [batch(1, timestamp_ms=1), batch(1, timestamp_ms=2)]
    pid = await new_producer(plane.service)
    numbered = [batch(1, pid, 0, 0), batch(1, pid, 0, 1)]
    for first, second in (plain, numbered):
        lost = journal.file(first)
        await journal.commit(second)
        await plane.service.commit_object(lost)
    log = await read_log(plane.service, journal.topic.partition_ids[0], journal.files)
    assert [each.timestamp_ms_max for each in log if each.producer_id < 0] == [2, 1]
    assert [each.base_sequence for each in log if each.producer_id >= 0] == [0, 1]


# ── gaps that are given up ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_gap_is_given_up_after_a_while_and_what_arrives_late_is_appended(
    plane: Plane, journal: Journal
) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 0))
    await journal.commit(batch(1, pid, 0, 5))
    plane.clock.advance(30)
    await journal.commit(batch(1, pid, 0, 3))
    await replay_all(plane)
    assert await plane.service.journals.give_up_once() == 0
    plane.clock.advance(31)
    # What waits longest has waited enough, and so has what comes before it.
    await plane.service.journals.give_up_once()
    assert await journal.log() == [(0, 0), (0, 3), (0, 5)]
    assert await journal.commit(batch(1, pid, 0, 6)) == [BatchVerdict(0, 3)]
    for late in (4, 1, 2):
        [verdict] = await journal.commit(batch(1, pid, 0, late))
        assert verdict.base_offset >= 4
    assert await journal.commit(batch(1, pid, 0, 4)) == [BatchVerdict(0, -1, True)]
    figures = plane.service.journals.statistics()
    assert (figures.gaps_given_up, figures.late_batches, figures.held_batches) == (2, 3, 0)


async def test_no_gap_is_given_up_while_a_journal_of_before_is_not_replayed(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    agent = ReplayingAgent(plane)
    await agent.put(journal_file([(journal.topic.topic_id, 0, [batch(1, pid, 0, 0)])], 0, incarnation="agent-b"))
    journal.files.update({"journal/agent-b/0000000000/0000000000": journal.file(batch(1, pid, 0, 0))})
    assert await journal.commit(batch(1, pid, 0, 1)) == [HELD]
    plane.clock.advance(120)
    assert await plane.service.journals.give_up_once() == 0
    await replay_all(plane)
    assert await journal.log() == [(0, 0), (0, 1)]
    assert plane.service.journals.statistics().gaps_given_up == 0


async def test_where_nothing_can_be_replayed_a_gap_is_given_up_in_the_end(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 1))
    plane.clock.advance(599)
    assert await plane.service.journals.give_up_once() == 0
    plane.clock.advance(1)
    assert await plane.service.journals.give_up_once() == 1
    assert await journal.log() == [(0, 1)]


async def test_no_more_are_held_than_there_is_room_for(plane: Plane, journal: Journal) -> None:
    pids = [await new_producer(plane.service) for _ in range(30)]
    for place, pid in enumerate(pids):
        plane.clock.advance(1)
        await journal.commit(batch(1, pid, 0, 1))
        await plane.service.sequencer.close()
        assert plane.service.journals.statistics().held_batches <= 20, place
    log = await read_log(plane.service, journal.topic.partition_ids[0], journal.files)
    assert [each.producer_id for each in log] == pids[: len(log)]
    assert len(log) >= 10


# ── classic commits beside journals ───────────────────────────────────────────────────────────────────────────────────


async def test_a_classic_commit_behind_held_batches_is_to_be_tried_again(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 0))
    await journal.commit(batch(1, pid, 0, 2))
    assert await commit(plane.service, journal.topic, [batch(1, pid, 0, 3)]) == [(19, -1, False)]
    # The producer sends again what is missing, and the topic is classic by now.
    assert await commit(plane.service, journal.topic, [batch(1, pid, 0, 1)]) == [(0, 1, False)]
    assert plane.service.journals.statistics().held_batches == 0
    assert await commit(plane.service, journal.topic, [batch(1, pid, 0, 3)]) == [(0, 3, False)]


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


async def test_a_classic_producer_fills_a_gap_that_was_given_up(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 1))
    plane.clock.advance(600)
    await plane.service.journals.give_up_once()
    late = make_object([(journal.topic.topic_id, 0, [batch(1, pid, 0, 0)])])
    verdict = await plane.service.commit_object(late)
    assert verdict.extents[0].verdicts == [BatchVerdict(0, 1)]
    assert await commit(plane.service, journal.topic, [batch(1, pid, 0, 2)]) == [(0, 2, False)]
    assert plane.service.journals.statistics().late_batches == 1


# ── a file is sequenced once ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_file_is_sequenced_once_however_often_it_is_brought(
    plane: Plane, journal: Journal, tmp_path: Path
) -> None:
    file = journal.file(batch(3))
    first = await plane.service.commit_object(file)
    assert await plane.service.commit_object(file) == first
    plane = await restarted(plane, tmp_path)
    assert await plane.service.commit_object(file) == first
    for _ in range(4):
        await plane.service.epochs.advance()
    await plane.service.sweeper.run_once()
    plane = await restarted(plane, tmp_path)
    # Its verdict is forgotten. That it was sequenced is not.
    again = await plane.service.commit_object(file)
    assert (again.error_code, again.extents) == (0, [])
    assert (await plane.service.commit_object(journal.file(batch(1)))).extents[0].verdicts == [BatchVerdict(0, 3)]


async def test_a_copy_in_another_slot_is_not_sequenced_again(plane: Plane, journal: Journal) -> None:
    file = journal.file(batch(3))
    first = await plane.service.commit_object(file)
    copy = CommitObject("journal/agent-a/0000000001/0000000000", file.size, file.footer)
    assert await plane.service.commit_object(copy) == first
    assert plane.service.journals.sequences.is_sequenced(("agent-a", 1), 0)
    plane.service.sequencer._verdicts.clear()
    assert await plane.service.commit_object(copy) == first


async def test_what_was_refused_before_it_was_journaled_is_sequenced_all_the_same(plane: Plane) -> None:
    """The control plane went away before it could tell of its refusal, so the agent has journaled it instead."""
    topic = await create_topic(plane.service)
    pid = await new_producer(plane.service)
    extents = [(topic.topic_id, 0, [batch(2), batch(3, pid, 0, 3)])]
    made = make_object(extents)
    verdict = await plane.service.commit_object(made)
    assert [each.error_code for each in verdict.extents[0].verdicts] == [0, 45]
    copy = CommitObject("journal/agent-a/0000000000/0000000000", made.size, made.footer)
    for _ in range(2):
        assert (await plane.service.commit_object(copy)).error_code == 0
    assert plane.service.journals.statistics().held_batches == 1
    first = journal_file([(topic.topic_id, 0, [batch(3, pid, 0, 0)])], 1)
    assert (await plane.service.commit_object(first)).error_code == 0
    log = await read_log(plane.service, topic.partition_ids[0], {each.key: each for each in (made, copy, first)})
    assert [(each.producer_id, each.base_sequence) for each in log] == [(-1, -1), (pid, 0), (pid, 3)]


async def test_a_copy_that_comes_together_with_its_original_is_known_in_both_places(
    plane: Plane, journal: Journal
) -> None:
    file = journal.file(batch(3))
    copy = CommitObject("journal/agent-a/0000000001/0000000000", file.size, file.footer)
    first, second = await asyncio.gather(plane.service.commit_object(file), plane.service.commit_object(copy))
    assert first == second
    sequences = plane.service.journals.sequences
    assert sequences.is_sequenced(("agent-a", 0), 0)
    assert sequences.is_sequenced(("agent-a", 1), 0)


async def test_neither_the_floor_nor_a_fenced_writer_keeps_a_journal_from_being_sequenced(
    plane: Plane, journal: Journal
) -> None:
    await plane.service.fence_agent(FenceAgent("agent-a"))
    for _ in range(5):
        await plane.service.epochs.advance()
    await plane.service.sweeper.run_once()
    assert plane.service.epochs.floor > 0
    assert await journal.commit(batch(1)) == [BatchVerdict(0, 0)]


async def test_a_fence_is_nothing_to_sequence(plane: Plane, journal: Journal) -> None:
    verdict = await plane.service.commit_object(fence(0))
    assert (verdict.error_code, verdict.extents) == (0, [])
    assert plane.service.journals.sequences.is_sequenced(("agent-a", 0), 0)
    assert await plane.metadata.read(lambda tx: tx.query("SELECT * FROM objects")) == []


# ── restarts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_restart_keeps_held_batches_watermarks_and_gaps(plane: Plane, journal: Journal, tmp_path: Path) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 0))
    await journal.commit(batch(1, pid, 0, 4))
    plane.clock.advance(600)
    await plane.service.journals.give_up_once()
    await journal.commit(batch(1, pid, 0, 7))
    plane = await restarted(plane, tmp_path)
    assert plane.service.journals.sequences.records["agent-a", 0].watermark == 3
    assert plane.service.journals.statistics().held_batches == 1
    assert await journal.commit(batch(1, pid, 0, 7)) == [BatchVerdict(0, -1, True)]
    assert await journal.commit(batch(1, pid, 0, 2)) == [BatchVerdict(0, 2)]
    plane = await restarted(plane, tmp_path)
    assert await journal.commit(batch(1, pid, 0, 2)) == [BatchVerdict(0, -1, True)]
    assert await journal.commit(batch(2, pid, 0, 5)) == [BatchVerdict(0, 3)]
    assert await journal.log() == [(0, 0), (0, 4), (0, 2), (0, 5), (0, 7)]


async def test_held_batches_are_readable_at_once_where_they_lie(plane: Plane, journal: Journal) -> None:
    """The feed tells of them as extents of their own objects, in the order of offsets."""
    pid = await new_producer(plane.service)
    snapshot = await plane.service.snapshot(SnapshotRequest())
    await journal.commit(batch(1, pid, 0, 1), batch(1))
    await journal.commit(batch(1, pid, 0, 0), batch(1))
    page = await plane.service.read_feed(FeedRequest(snapshot.position, 0))
    events = [event for event in page.events if isinstance(event, ObjectSequenced)]
    assert [(event.object.key[-1], [each.base_offset for each in event.extents]) for event in events] == [
        ("0", [0]),
        ("1", [1]),
        ("0", [3]),
    ]


# ── producers that look silent ────────────────────────────────────────────────────────────────────────────────────────


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
    assert await plane.service.producers.expire_once() == 0
    await replay_all(plane)
    assert await journal.log() == [(0, 0), (0, 1)]
    assert plane.service.journals.statistics().duplicate_batches == 1
    plane.clock.advance(2 * 3600)
    assert await plane.service.producers.expire_once() == 0
    await replay_all(plane)
    assert await plane.service.producers.expire_once() == 1


async def test_without_journals_producers_expire_as_ever(plane: Plane) -> None:
    await new_producer(plane.service)
    plane.clock.advance(3600)
    assert await plane.service.producers.expire_once() == 1
