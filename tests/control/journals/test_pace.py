"""Replays are paced."""

import asyncio
from pathlib import Path

import pytest
from tests.control.driver import create_topic, start_plane
from tests.control.journals.driver import LIGHTNING, file

from braidlog.control.interface import (
    CommitObject,
)
from braidlog.control.journals.settings import JournalSettings
from braidlog.control.settings import ControlSettings
from braidlog.runtime.errors import ControlUnavailable


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
