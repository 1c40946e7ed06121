"""Journal sequences are closed when nothing refers to them, and never come back."""

from pathlib import Path

from tests.control.driver import Plane, start_plane
from tests.control.journals.driver import SETTINGS, ReplayingAgent, fence, file, record_count

from braidlog.control.interface import (
    DeleteRecords,
    EndSequence,
    TopicInfo,
)
from braidlog.objects.keys import SLOTS_IN_FLIGHT_MAX, journal_key


async def restart(plane: Plane, tmp_path: Path) -> None:
    await plane.service.close()
    again = await start_plane(
        f"sqlite://{tmp_path}/metadata.db", clock=plane.clock, bucket=plane.bucket, settings=SETTINGS
    )
    plane.service, plane.metadata = again.service, again.metadata


async def test_an_unsequenced_file_is_never_swept(plane: Plane, agent: ReplayingAgent, topic: TopicInfo) -> None:
    await agent.put(file(topic, 0))
    for _ in range(SETTINGS.grace_epochs + 5):
        await plane.service.parts.epochs.advance()
    plane.clock.advance(2 * SETTINGS.full_sweep_interval_s)
    await plane.service.parts.sweeper.run_once()
    await plane.service.parts.journal_closer.run_once()
    assert len(plane.keys) == 1
    assert not plane.service.parts.journal_closer.may_delete(plane.keys[0])


async def test_a_sequence_is_closed_when_nothing_points_to_it_and_nothing_of_it_comes_back(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo, tmp_path: Path
) -> None:
    files = [file(topic, slot) for slot in range(3)]
    for made in files:
        await agent.put(made)
    await plane.service.parts.journals.plan_once()
    await agent.work()
    assert len(plane.keys) == 3 + SLOTS_IN_FLIGHT_MAX
    plane.clock.advance(300)
    await plane.service.parts.sweeper.run_once()
    assert await plane.service.parts.journal_closer.run_once() == 0
    await plane.service.delete_records(DeleteRecords(topic.partition_ids[0], -1))
    plane.clock.advance(61)
    assert (await plane.service.parts.sweeper.run_once()).unreferenced_count == 3
    assert len(plane.keys) == SLOTS_IN_FLIGHT_MAX
    assert await plane.service.parts.journal_closer.run_once() == 1
    assert plane.keys == []
    for _ in range(SETTINGS.grace_epochs + 5):
        await plane.service.parts.epochs.advance()
    await plane.service.parts.sweeper.run_once()
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
        assert plane.service.parts.journals.sequences.known_below() == {"agent-a": 1}


async def test_a_sequence_that_its_writer_ended_is_closed_without_waiting_for_its_age(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    """It needs no fences: its writer puts nothing there any more."""
    made = file(topic, 0)
    await agent.put(made)
    await plane.service.commit_object(made)
    closer = plane.service.parts.journal_closer
    await plane.service.delete_records(DeleteRecords(topic.partition_ids[0], -1))
    plane.clock.advance(61)
    assert (await plane.service.parts.sweeper.run_once()).unreferenced_count == 1
    assert await closer.run_once() == 0
    await plane.service.end_sequence(EndSequence("agent-a", 0, 1))
    assert await closer.run_once() == 1
    assert plane.keys == []


async def test_a_file_that_lands_when_its_sequence_is_closed_goes_with_the_next_full_sweep(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo, tmp_path: Path
) -> None:
    await plane.service.end_sequence(EndSequence("agent-a", 0, 0))
    plane.clock.advance(241)
    assert await plane.service.parts.journal_closer.run_once() == 1
    await agent.put(file(topic, 0))
    await agent.put(file(topic, 0, sequence=1))
    assert await plane.service.parts.journal_closer.run_once() == 0
    assert len(plane.keys) == 2
    for _ in range(2):  # whoever is restarted more often than the sweep is due still does it
        plane.clock.advance(SETTINGS.full_sweep_interval_s / 2)
        await restart(plane, tmp_path)
    await plane.service.parts.journal_closer.run_once()
    assert plane.keys == [journal_key("agent-a", 1, 0)]


async def test_fences_stay_until_no_sleeper_can_write_there(
    plane: Plane, agent: ReplayingAgent, topic: TopicInfo
) -> None:
    await agent.put(fence(0))
    await plane.service.parts.journals.plan_once()
    await agent.work()
    assert plane.service.parts.journals.statistics().complete_sequences == 1
    plane.clock.advance(239)
    assert await plane.service.parts.journal_closer.run_once() == 0
    plane.clock.advance(2)
    assert await plane.service.parts.journal_closer.run_once() == 1
    assert plane.keys == []


async def test_sequences_closed_out_of_order_are_remembered(plane: Plane, topic: TopicInfo) -> None:
    sequences = plane.service.parts.journals.sequences
    for number in (0, 1, 2, 4):
        await plane.service.end_sequence(EndSequence("agent-a", number, 0 if number != 1 else 5))
    plane.clock.advance(241)
    assert await plane.service.parts.journal_closer.run_once() == 3
    assert sequences.closed == {"agent-a": ((0, 1), (2, 3), (4, 5))}
    assert sequences.known_below() == {"agent-a": 3}
    assert not sequences.is_sequenced(("agent-a", 1), 0)
    assert sequences.is_sequenced(("agent-a", 4), 17)
