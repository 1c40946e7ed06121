"""Journaled files in the control plane: every record once, in the order of its producer, whatever comes when."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.control.driver import Plane, batch, create_topic, new_producer, start_plane
from tests.control.journal_driver import LIGHTNING, journal_file

from braidlog.control.interface import BatchVerdict
from braidlog.control.settings import ControlSettings

SETTINGS = ControlSettings()


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    plane = await start_plane(f"sqlite://{tmp_path}/metadata.db", settings=SETTINGS)
    yield plane
    await plane.service.close()


async def test_batches_behind_a_gap_are_held_until_it_is_filled(plane: Plane) -> None:
    topic = await create_topic(plane.service, **LIGHTNING)
    pid = await new_producer(plane.service)

    async def journal(slot: int, sequence: int) -> BatchVerdict:
        file = journal_file([(topic.topic_id, 0, [batch(1, pid, 0, sequence)])], slot)
        verdict = await plane.service.commit_object(file)
        assert verdict.error_code == 0
        return verdict.extents[0].verdicts[0]

    assert await journal(0, 0) == BatchVerdict(0, 0)
    assert await journal(2, 2) == BatchVerdict(0, -1, held=True)
    assert await journal(3, 3) == BatchVerdict(0, -1, held=True)
    assert await journal(4, 2) == BatchVerdict(0, -1, True)
    assert await journal(1, 1) == BatchVerdict(0, 1)
    assert plane.service.journals.statistics().held_batches == 0
    assert await journal(5, 4) == BatchVerdict(0, 4)
    assert await journal(6, 3) == BatchVerdict(0, 3, True)
