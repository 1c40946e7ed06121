"""A topic is deleted and created again: idempotent producers go on with it, and nothing is lost, doubled or turned."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from tests.control.driver import Plane, batch, commit, create_topic, new_producer, start_plane
from tests.control.journals.driver import LIGHTNING, ReplayingAgent, journal_file, read_log

from braidlog.control.interface import (
    BatchVerdict,
    CommitObject,
    DeleteTopics,
    RegisterAgent,
    RequestScan,
    TopicInfo,
    TopicRef,
)
from braidlog.control.settings import ControlSettings
from braidlog.objects.layout import BatchEntry

OUT_OF_ORDER = int(ErrorCode.out_of_order_sequence_number)
SETTINGS = ControlSettings(session_timeout_s=10**6)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    plane = await start_plane(f"sqlite://{tmp_path}/metadata.db", settings=SETTINGS)
    yield plane
    await plane.service.close()


async def restart(plane: Plane, tmp_path: Path) -> None:
    await plane.service.close()
    again = await start_plane(
        f"sqlite://{tmp_path}/metadata.db", clock=plane.clock, bucket=plane.bucket, settings=SETTINGS
    )
    plane.service, plane.metadata = again.service, again.metadata


async def delete(plane: Plane, name: str = "events") -> None:
    outcome = (await plane.service.delete_topics(DeleteTopics([TopicRef(name)]))).outcomes[0]
    assert outcome.error_code == 0


async def write(
    plane: Plane, topic: TopicInfo, *batches: BatchEntry, partition: int = 0
) -> list[tuple[int, int, bool]]:
    return await commit(plane.service, topic, batches, partition)


class Journal:
    def __init__(self, plane: Plane, topic: TopicInfo, incarnation: str) -> None:
        self.plane, self.topic, self.incarnation = plane, topic, incarnation
        self.files: dict[str, CommitObject] = {}

    async def write(self, *batches: BatchEntry) -> list[BatchVerdict]:
        made = journal_file([(self.topic.topic_id, 0, batches)], len(self.files), incarnation=self.incarnation)
        self.files[made.key] = made
        return (await self.plane.service.commit_object(made)).extents[0].verdicts

    async def log(self) -> list[int]:
        found = await read_log(self.plane.service, self.topic.partition_ids[0], self.files)
        return [each.base_sequence for each in found]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("first", [5, 7, 3], ids=["the next", "a later one", "an earlier one"])
async def test_a_producer_goes_on_with_whatever_number(
    plane: Plane, tmp_path: Path, first: int, restarts: bool
) -> None:
    pid = await new_producer(plane.service)
    topic = await create_topic(plane.service)
    assert await write(plane, topic, *(batch(1, pid, 0, number) for number in range(5)))
    await delete(plane)
    if restarts:
        await restart(plane, tmp_path)
    topic = await create_topic(plane.service)
    if restarts:
        await restart(plane, tmp_path)
    assert await write(plane, topic, batch(1, pid, 0, first)) == [(0, 0, False)]
    assert await write(plane, topic, batch(1, pid, 0, first)) == [(0, 0, True)]
    assert await write(plane, topic, batch(1, pid, 0, first + 1)) == [(0, 1, False)]
    assert await write(plane, topic, batch(1, pid, 0, first + 3)) == [(OUT_OF_ORDER, -1, False)]


async def test_what_was_passed_over_is_not_taken_for_a_duplicate(plane: Plane) -> None:
    """The first batch for the new topic failed, and is sent again behind the second."""
    pid = await new_producer(plane.service)
    await write(plane, await create_topic(plane.service), batch(1, pid, 0, 0))
    await delete(plane)
    topic = await create_topic(plane.service)
    assert await write(plane, topic, batch(1, pid, 0, 2)) == [(0, 0, False)]
    assert await write(plane, topic, batch(1, pid, 0, 1)) == [(0, 1, False)]


async def test_who_did_not_write_to_the_earlier_topic_begins_at_0(plane: Plane) -> None:
    pid, other = await new_producer(plane.service), await new_producer(plane.service)
    await write(plane, await create_topic(plane.service, "events", 2), batch(1, pid, 0, 0))
    await delete(plane)
    topic = await create_topic(plane.service, "events", 2)
    assert await write(plane, topic, batch(1, other, 0, 1)) == [(OUT_OF_ORDER, -1, False)]
    assert await write(plane, topic, batch(1, pid, 0, 1), partition=1) == [(OUT_OF_ORDER, -1, False)]
    assert await write(plane, topic, batch(1, pid, 1, 1)) == [(OUT_OF_ORDER, -1, False)]
    fresh = await create_topic(plane.service, "others")
    assert await write(plane, fresh, batch(1, pid, 0, 1)) == [(OUT_OF_ORDER, -1, False)]


async def test_what_is_known_of_a_producer_goes_with_it(plane: Plane) -> None:
    pid = await new_producer(plane.service)
    await write(plane, await create_topic(plane.service), batch(1, pid, 0, 0))
    await delete(plane)
    plane.clock.advance(SETTINGS.producer_expiration_s + 1)
    await plane.service.parts.producers.expire_once()
    assert await plane.metadata.read(lambda tx: tx.query("SELECT * FROM departed_producers")) == []


async def test_a_journaled_batch_that_goes_on_from_the_earlier_topic_waits_for_nothing(plane: Plane) -> None:
    await plane.service.register_agent(RegisterAgent("agent-a", "127.0.0.1", 9092, ""))
    pid = await new_producer(plane.service)
    earlier = Journal(plane, await create_topic(plane.service, **LIGHTNING), "agent-a")
    for number in range(5):
        await earlier.write(batch(1, pid, 0, number))
    await delete(plane)
    journal = Journal(plane, await create_topic(plane.service, **LIGHTNING), "agent-b")
    assert await journal.write(batch(1, pid, 0, 5)) == [BatchVerdict(0, 0)]
    assert (await journal.write(batch(1, pid, 0, 7)))[0].held
    await journal.write(batch(1, pid, 0, 6))
    assert await journal.log() == [5, 6, 7]


async def test_and_one_that_overtook_another_still_waits_for_it(plane: Plane, tmp_path: Path) -> None:
    await plane.service.register_agent(RegisterAgent("agent-a", "127.0.0.1", 9092, ""))
    pid = await new_producer(plane.service)
    earlier = Journal(plane, await create_topic(plane.service, **LIGHTNING), "agent-a")
    await earlier.write(batch(1, pid, 0, 0))
    await delete(plane)
    journal = Journal(plane, await create_topic(plane.service, **LIGHTNING), "agent-b")
    assert (await journal.write(batch(1, pid, 0, 2)))[0].held
    await restart(plane, tmp_path)
    await journal.write(batch(1, pid, 0, 1))
    assert await journal.log() == [1, 2]


async def test_a_gap_that_went_with_the_earlier_topic_is_given_up(plane: Plane) -> None:
    """Some of it was journaled and not sequenced when the topic was deleted."""
    await plane.service.register_agent(RegisterAgent("agent-a", "127.0.0.1", 9092, ""))
    pid = await new_producer(plane.service)
    earlier = Journal(plane, await create_topic(plane.service, **LIGHTNING), "agent-a")
    await earlier.write(batch(1, pid, 0, 0))
    await delete(plane)
    journal = Journal(plane, await create_topic(plane.service, **LIGHTNING), "agent-b")
    assert (await journal.write(batch(1, pid, 0, 3)))[0].held
    plane.clock.advance(1)
    await plane.service.request_scan(RequestScan("test"))
    await ReplayingAgent(plane).work()
    plane.clock.advance(60)
    await plane.service.parts.journals.give_up_once()
    assert await journal.log() == [3]
