"""The sweeper deletes objects that nothing refers to, and none that could still be sequenced."""

import pytest
from tests.control.driver import Plane, batch, create_topic, make_object, pass_epochs, upload

from braidlog.control.interface import (
    BoundsRequest,
    DeleteRecords,
    DeleteTopics,
    TopicRef,
)
from braidlog.control.log import sweeper


async def test_an_orphan_is_swept_and_can_never_be_sequenced(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    kept, orphan = await upload(plane, topic), await upload(plane, topic)
    first_verdict = await plane.service.commit_object(kept)
    await pass_epochs(plane, 2)
    assert (await plane.service.parts.sweeper.run_once()).orphan_count == 0
    await pass_epochs(plane, 1)
    swept = await plane.service.parts.sweeper.run_once()
    assert (swept.listed_count, swept.orphan_count) == (2, 1)
    assert plane.keys == [kept.key]
    refused = await plane.service.commit_object(orphan)
    assert (refused.error_code, refused.extents) == (6, [])
    assert (await plane.service.commit_object(kept)) == first_verdict
    # Only what is new is listed: nothing was written since.
    await pass_epochs(plane, 1)
    assert (await plane.service.parts.sweeper.run_once()).listed_count == 0


async def test_the_floor_is_up_before_anything_is_listed(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    late = await upload(plane, topic)
    await pass_epochs(plane, 3)
    seen: list[int] = []
    list_objects = plane.store.list

    async def commit_while_listing(prefix: str, *, after: str | None = None, limit: int = 1000) -> object:
        verdict = await plane.service.commit_object(late)
        seen.append(verdict.error_code)
        return await list_objects(prefix, after=after, limit=limit)

    plane.store.list = commit_while_listing  # type: ignore[method-assign,assignment]
    assert (await plane.service.parts.sweeper.run_once()).orphan_count == 1
    assert set(seen) == {6}


async def test_what_lands_after_its_epoch_was_swept_is_found_by_a_full_sweep(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    late = make_object([(topic.topic_id, 0, [batch()])], write_epoch=1)
    await pass_epochs(plane, 4)
    await plane.service.parts.sweeper.run_once()
    await plane.store.put(late.key, b"x")
    assert (await plane.service.parts.sweeper.run_once()).orphan_count == 0
    plane.clock.advance(2000)
    assert (await plane.service.parts.sweeper.run_once()).orphan_count == 1
    assert plane.keys == []


async def test_an_object_goes_a_while_after_its_last_extent(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    request = await upload(plane, topic)
    await plane.service.commit_object(request)
    await plane.service.delete_records(DeleteRecords(topic.partition_ids[0], -1))
    assert (await plane.service.parts.sweeper.run_once()).unreferenced_count == 0
    plane.clock.advance(61)
    assert (await plane.service.parts.sweeper.run_once()).unreferenced_count == 1
    assert plane.keys == []
    # Its nonce is known until the floor has passed: it cannot come back.
    assert (await plane.service.commit_object(request)).extents[0].verdicts[0].base_offset == 0
    await pass_epochs(plane, 3)
    await plane.service.parts.sweeper.run_once()
    assert await plane.metadata.read(lambda tx: tx.query("SELECT number FROM objects")) == []
    plane.service.parts.sequencer._verdicts.clear()
    assert (await plane.service.commit_object(request)).error_code == 6
    assert (await plane.service.current_bounds(BoundsRequest(topic.partition_ids))).bounds[0].high_watermark == 1


async def test_an_object_with_nothing_accepted_is_swept(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    request = await upload(plane, topic)
    await plane.service.delete_topics(DeleteTopics([TopicRef(topic.name)]))
    assert (await plane.service.commit_object(request)).extents[0].verdicts[0].error_code == 100
    plane.clock.advance(61)
    assert (await plane.service.parts.sweeper.run_once()).unreferenced_count == 1


async def test_objects_that_must_stay_do_not_hold_up_the_rest(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest rows fill whole steps, and none of them may go yet."""
    monkeypatch.setattr(sweeper, "_OBJECTS_PER_STEP", 2)
    topic = await create_topic(plane.service)
    keys = []
    for _ in range(9):
        request = await upload(plane, topic)
        await plane.service.commit_object(request)
        keys.append(request.key)
    await plane.service.delete_records(DeleteRecords(topic.partition_ids[0], -1))
    plane.clock.advance(61)
    must_stay = {*keys[:5], keys[7]}

    class Unsequenced:
        def may_delete(self, key: str) -> bool:
            return key not in must_stay

    plane.service.parts.sweeper._journal_files = Unsequenced()
    assert (await plane.service.parts.sweeper.run_once()).unreferenced_count == 3
    assert set(plane.keys) == must_stay
    must_stay.clear()
    assert (await plane.service.parts.sweeper.run_once()).unreferenced_count == 6
    assert plane.keys == []
