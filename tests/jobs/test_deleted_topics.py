"""Topics go whenever somebody deletes them: also in the middle of what the control plane does by itself."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from tests.control.driver import Plane, create_topic
from tests.jobs.driver import Writer, start

from braidlog.control.interface import DeleteTopics, RequestCompaction, TopicRef
from braidlog.control.metadata.store import Transaction

T = TypeVar("T")

STEPS = ("retention", "sweeper", "job planning", "journal scans", "gaps of journals", "producer expiry")


async def two_topics(plane: Plane) -> None:
    for name in ("merged", "compacted"):
        configs = {"cleanup_policy": "compact"} if name == "compacted" else {}
        topic = await create_topic(plane.service, name, 2, **configs)
        writer = Writer(plane, name)
        for number in range(8):
            await writer.write(topic, {at: [(b"key", b"%d" % number)] for at in range(2)})


def delete_at_read(plane: Plane, number: int, patch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Delete all topics right after that read of the metadata. Returns what says whether there were so many."""
    metadata = plane.service._metadata
    read, left = metadata.read, number

    async def then_delete(fn: Callable[[Transaction], T]) -> T:
        nonlocal left
        found = await read(fn)
        left -= 1
        if left == 0 and not plane.service.parts.jobs._state_lock.locked():
            topics = [TopicRef(topic.info.name) for topic in plane.service.parts.catalog.topics.values()]
            await plane.service.delete_topics(DeleteTopics(topics))
        return found

    patch.setattr(metadata, "read", then_delete)
    return lambda: left <= 0


async def run_with_deletions(step: Callable[[Plane], Any]) -> None:
    """With one deletion at each read that the step makes, one after the other."""
    number = 0
    while True:
        number += 1
        plane = await start()
        await two_topics(plane)
        with pytest.MonkeyPatch.context() as patch:
            was_there = delete_at_read(plane, number, patch)
            await step(plane)
        await plane.service.close()
        if not was_there():
            return


@pytest.mark.parametrize("name", STEPS)
async def test_a_step_goes_on_when_a_topic_is_deleted_in_its_midst(name: str) -> None:
    async def step(plane: Plane) -> None:
        (run,) = [run for step_name, _, run in plane.service.parts.steps() if step_name == name]
        await run()

    await run_with_deletions(step)


async def test_a_compaction_that_was_asked_for_goes_on_when_its_topic_is_deleted() -> None:
    async def step(plane: Plane) -> None:
        await plane.service.request_compaction(RequestCompaction("compacted"))

    await run_with_deletions(step)
