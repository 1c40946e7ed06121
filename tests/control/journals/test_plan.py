"""The plan of journaled files: every record once, in the order of its producer, whatever comes when."""

import asyncio
from pathlib import Path

from tests.control.driver import Plane, batch, commit, create_topic, make_object, new_producer
from tests.control.journals.driver import Journal, fence, journal_file, read_log, restarted

from braidlog.control.interface import (
    BatchVerdict,
    CommitObject,
    DeleteTopics,
    FenceAgent,
    TopicRef,
)
from braidlog.records.batch import TRANSACTIONAL_BIT
from braidlog.runtime.limits import PRODUCER_IDS_OF_AGENTS_FROM

HELD = BatchVerdict(0, -1, held=True)


async def test_batches_behind_a_gap_are_held_until_it_is_filled(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    assert await journal.commit(batch(1, pid, 0, 0)) == [BatchVerdict(0, 0)]
    assert await journal.commit(batch(1, pid, 0, 2)) == [HELD]
    assert await journal.commit(batch(1, pid, 0, 3), batch(1)) == [HELD, BatchVerdict(0, 1)]
    assert await journal.commit(batch(1, pid, 0, 2)) == [BatchVerdict(0, -1, True)]
    assert await journal.log() == [(0, 0), (-1, -1)]
    assert await journal.commit(batch(1, pid, 0, 1)) == [BatchVerdict(0, 2)]
    assert plane.service.parts.journals.statistics().held_batches == 0
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
    assert plane.service.parts.journals.statistics().duplicate_batches == 1
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
    assert plane.service.parts.journals.statistics().older_epoch_batches == 1
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
    await plane.service.parts.journals.give_up_once()
    figures = plane.service.parts.journals.statistics()
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


async def test_a_classic_commit_behind_held_batches_is_to_be_tried_again(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 0))
    await journal.commit(batch(1, pid, 0, 2))
    assert await commit(plane.service, journal.topic, [batch(1, pid, 0, 3)]) == [(19, -1, False)]
    # The producer sends again what is missing, and the topic is classic by now.
    assert await commit(plane.service, journal.topic, [batch(1, pid, 0, 1)]) == [(0, 1, False)]
    assert plane.service.parts.journals.statistics().held_batches == 0
    assert await commit(plane.service, journal.topic, [batch(1, pid, 0, 3)]) == [(0, 3, False)]


async def test_a_classic_producer_fills_a_gap_that_was_given_up(plane: Plane, journal: Journal) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 1))
    plane.clock.advance(600)
    await plane.service.parts.journals.give_up_once()
    late = make_object([(journal.topic.topic_id, 0, [batch(1, pid, 0, 0)])])
    verdict = await plane.service.commit_object(late)
    assert verdict.extents[0].verdicts == [BatchVerdict(0, 1)]
    assert await commit(plane.service, journal.topic, [batch(1, pid, 0, 2)]) == [(0, 2, False)]
    assert plane.service.parts.journals.statistics().late_batches == 1


async def test_a_file_is_sequenced_once_however_often_it_is_brought(
    plane: Plane, journal: Journal, tmp_path: Path
) -> None:
    file = journal.file(batch(3))
    first = await plane.service.commit_object(file)
    assert await plane.service.commit_object(file) == first
    plane = await restarted(plane, tmp_path)
    assert await plane.service.commit_object(file) == first
    for _ in range(4):
        await plane.service.parts.epochs.advance()
    await plane.service.parts.sweeper.run_once()
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
    assert plane.service.parts.journals.sequences.is_sequenced(("agent-a", 1), 0)
    plane.service.parts.sequencer._verdicts.clear()
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
    assert plane.service.parts.journals.statistics().held_batches == 1
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
    sequences = plane.service.parts.journals.sequences
    assert sequences.is_sequenced(("agent-a", 0), 0)
    assert sequences.is_sequenced(("agent-a", 1), 0)


async def test_neither_the_floor_nor_a_fenced_writer_keeps_a_journal_from_being_sequenced(
    plane: Plane, journal: Journal
) -> None:
    await plane.service.fence_agent(FenceAgent("agent-a"))
    for _ in range(5):
        await plane.service.parts.epochs.advance()
    await plane.service.parts.sweeper.run_once()
    assert plane.service.parts.epochs.floor > 0
    assert await journal.commit(batch(1)) == [BatchVerdict(0, 0)]


async def test_a_fence_is_nothing_to_sequence(plane: Plane, journal: Journal) -> None:
    verdict = await plane.service.commit_object(fence(0))
    assert (verdict.error_code, verdict.extents) == (0, [])
    assert plane.service.parts.journals.sequences.is_sequenced(("agent-a", 0), 0)
    assert await plane.metadata.read(lambda tx: tx.query("SELECT * FROM objects")) == []
