"""A control plane that is killed at any moment, or restarted: what was acknowledged is there, and nothing twice."""

import asyncio
import subprocess
import sys
from pathlib import Path

from tests.control.driver import batch, commit, create_topic, make_object, new_producer, outcomes, start_plane

from braidlog.control.interface import (
    AgentHeartbeat,
    AlterConfigs,
    ConfigChange,
    FeedRequest,
    FindExtents,
    RegisterAgent,
    SnapshotRequest,
)
from braidlog.control.settings import ControlSettings
from braidlog.objects.store import StoreUnavailable
from braidlog.runtime.entropy import SeededEntropy

KILLS = 5


async def test_a_killed_control_plane_leaves_all_or_nothing(tmp_path: Path) -> None:
    """Longer than most, because each kill needs a process of its own."""
    path = f"{tmp_path}/metadata.db"
    entropy = SeededEntropy("kills")
    acknowledged: dict[bytes, list[tuple[int, int]]] = {}
    for round_number in range(KILLS):
        lines_wanted = 5 + entropy.below(120)
        command = [sys.executable, "-m", "tests.control.committer", path, f"r{round_number}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(lines_wanted)]
            process.kill()
            lines.extend(process.stdout.readlines())
        for line in lines:
            if line.endswith("\n"):
                nonce, *offsets = line.split()
                acknowledged[bytes.fromhex(nonce)] = [
                    (int(i), int(o)) for i, o in (pair.split(":") for pair in offsets)
                ]
    assert len(acknowledged) >= KILLS * 5

    plane = await start_plane(f"sqlite://{path}")
    topic = (await plane.service.snapshot(SnapshotRequest())).topics[0]
    objects = await plane.metadata.read(lambda tx: tx.query("SELECT nonce, number, live_count FROM objects"))
    numbers = {nonce: number for nonce, number, _ in objects}
    assert len(numbers) == len(objects)
    assert acknowledged.keys() <= numbers.keys()
    placed: dict[int, list[tuple[int, int]]] = {}
    for index, partition_id in enumerate(topic.partition_ids):
        found = await plane.service.find_extents(FindExtents(partition_id, 0, 10**12, 10_000))
        end = 0
        for extent in found.extents:
            assert extent.base_offset == end
            end = extent.end_offset
            placed.setdefault(extent.object_number, []).append((index, extent.base_offset))
        assert end == found.bounds.high_watermark
    for nonce, number, live_count in objects:
        assert len(placed[number]) == live_count
        if nonce in acknowledged:
            assert sorted(placed[number]) == sorted(acknowledged[nonce])
    await plane.service.close()


async def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    first = await start_plane(url)
    control = first.service
    registered = await control.register_agent(RegisterAgent("one", "host", 9092, "a"))
    topic = await create_topic(control, "t", 3, retention_ms="77")
    await control.alter_configs(AlterConfigs(4, "", [ConfigChange("num.partitions", 0, "3")]))
    pid = await new_producer(control)
    request = make_object([(topic.topic_id, 0, [batch(5, pid, 0, 0)]), (topic.topic_id, 2, [batch(2)])])
    verdict = await control.commit_object(request)
    before = await control.snapshot(SnapshotRequest())
    await control.close()

    # Time enough to forget the agent passes while nobody could hear its heartbeats.
    first.clock.advance(60)
    second = await start_plane(url, clock=first.clock, settings=ControlSettings(recent_extents_max=1))
    control = second.service
    after = await control.snapshot(SnapshotRequest())
    assert after.cluster_id == before.cluster_id
    assert after.topics == before.topics
    assert after.bounds == before.bounds
    assert after.agents == before.agents
    assert after.cluster_configs == before.cluster_configs
    assert after.position.fencing_epoch > before.position.fencing_epoch
    assert (await control.read_feed(FeedRequest(before.position, 0))).reload
    assert await control.parts.agents.expire_once() == 0
    beat = await control.heartbeat_agent(AgentHeartbeat("one"))
    assert (beat.known, beat.write_epoch) == (True, registered.write_epoch)

    assert await control.commit_object(request) == verdict
    assert await commit(control, topic, [batch(5, pid, 0, 0)]) == [(0, 0, True)]
    assert await commit(control, topic, [batch(1, pid, 0, 5)]) == [(0, 5, False)]
    found = await control.find_extents(FindExtents(topic.partition_ids[0], 0, 10**9))
    assert [extent.base_offset for extent in found.extents] == [0, 5]
    assert await new_producer(control) > pid
    other = await create_topic(control, "u", 1)
    assert other.partition_ids[0] > max(topic.partition_ids)
    assert outcomes(await control.commit_object(make_object([(other.topic_id, 0, [batch()])]))) == [(0, 0, False)]
    await control.close()


async def test_the_background_steps_run_and_survive_a_failing_store() -> None:
    plane = await start_plane(settings=ControlSettings(grace_epochs=1))
    control = plane.service
    listed = asyncio.Event()

    async def fail(prefix: str, *, after: str | None = None, limit: int = 1000) -> object:
        listed.set()
        raise StoreUnavailable("away")

    plane.store.list = fail  # type: ignore[method-assign,assignment]
    await control.register_agent(RegisterAgent("one", "host", 9092, "a"))
    async with asyncio.timeout(60):
        while not listed.is_set() or control.parts.epochs.current < 5:
            plane.clock.advance(70)
            await asyncio.sleep(0)
    assert control.parts.agents.agents == []
    assert not any(loop.done() for loop in control._runner._loops)
    await control.close()
