"""Write epochs: fenced writers are refused."""

from pathlib import Path

from tests.control.conftest import SETTINGS
from tests.control.driver import Plane, create_topic, pass_epochs, start_plane, upload

from braidlog.control.interface import (
    FenceAgent,
)
from braidlog.objects.keys import parse_data_key


async def test_nothing_of_a_writer_that_was_fenced_off_is_sequenced_any_more(plane: Plane, tmp_path: Path) -> None:
    topic = await create_topic(plane.service)
    before, late = await upload(plane, topic), await upload(plane, topic)
    verdict = await plane.service.commit_object(before)
    incarnation = parse_data_key(late.key).incarnation
    await plane.service.fence_agent(FenceAgent(incarnation))
    await plane.service.fence_agent(FenceAgent(incarnation))
    refused = await plane.service.commit_object(late)
    assert (refused.error_code, refused.extents) == (6, [])
    assert "fenced off" in refused.error_message
    assert await plane.service.commit_object(before) == verdict
    # A new control plane knows of it, and nobody has to once the floor has passed.
    restarted = await start_plane(f"sqlite://{tmp_path}/metadata.db", settings=SETTINGS)
    assert (await restarted.service.commit_object(late)).error_code == 6
    await pass_epochs(restarted, 3)
    await restarted.service.parts.sweeper.run_once()
    assert await restarted.metadata.read(lambda tx: tx.query("SELECT * FROM fenced_writers")) == []
    assert (await restarted.service.commit_object(late)).error_code == 6
    await restarted.service.close()
