"""Metadata that moves from one kind to another, or comes back exactly from the bucket."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.control.driver import create_topic
from tests.control.restoring.driver import Cluster, records
from tests.postgres import Postgres, running_postgres

from braidlog.control.interface import SnapshotRequest, TopicInfo
from braidlog.control.restoring.restore import RestoreOrder, restore, verify
from braidlog.control.restoring.sources import RestoreRefused
from braidlog.control.store_owner import WrongStore
from braidlog.runtime.errors import Fenced


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


async def check_same(cluster: Cluster, topic: TopicInfo, places: dict[str, int]) -> None:
    assert await cluster.places(topic) == places
    snapshot = await cluster.service.snapshot(SnapshotRequest())
    assert snapshot.bounds[0].leader_epochs == ((0, 0),)  # nothing lost its offset


async def test_metadata_moves_through_all_kinds_and_back(tmp_path: Path, server: Postgres) -> None:
    cluster = await Cluster(tmp_path).start()
    topic = await create_topic(cluster.service)
    await cluster.commit(topic, [records(3)])
    urls = [cluster.url, "bucket://", server.new_database(), "bucket://", f"sqlite://{tmp_path}/last.db"]
    for number, (old, new) in enumerate(pairwise(urls), start=1):
        places = await cluster.places(topic)
        await cluster.service.close()
        report = await restore(cluster.parts, RestoreOrder(new, moved_from=old))
        assert (report.restore, report.is_exact, report.partitions) == (number, True, [])
        if old != "bucket://":
            with pytest.raises(WrongStore, match="restore"):  # nobody goes on with what was moved
                await Cluster(tmp_path, before=cluster).start(old)
        cluster = await Cluster(tmp_path, before=cluster).start(new)
        await check_same(cluster, topic, places)
        await cluster.commit(topic, [records(2)])
    await cluster.service.close()


async def test_a_move_fences_whoever_still_runs(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path).start("bucket://")
    topic = await create_topic(cluster.service)
    await restore(cluster.parts, RestoreOrder(f"sqlite://{tmp_path}/new.db", moved_from="bucket://"))
    with pytest.raises(Fenced):
        await cluster.commit(topic, [records(1)])
    after = await Cluster(tmp_path, before=cluster).start(f"sqlite://{tmp_path}/new.db")
    await after.commit(topic, [records(1)])
    await after.service.close()
    await cluster.service.close()


async def test_bucket_metadata_is_restored_exactly(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path).start("bucket://")
    topic = await create_topic(cluster.service)
    for _ in range(5):
        await cluster.commit(topic, [records(3)])
    places = await cluster.places(topic)
    checked = await verify(cluster.parts)
    assert (checked.source, checked.is_exact, checked.partitions) == ("deltas", True, [])
    after = Cluster(tmp_path, before=cluster)
    report = await restore(cluster.parts, RestoreOrder(after.url, waits=False))
    assert (report.source, report.is_exact, report.partitions) == ("deltas", True, [])
    await after.start()
    await check_same(after, topic, places)
    await after.service.close()
    await cluster.service.close()


async def test_metadata_in_use_is_not_written_over(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path).start("bucket://")
    await create_topic(cluster.service)
    with pytest.raises(RestoreRefused, match="in use"):
        await restore(cluster.parts, RestoreOrder("bucket://", waits=False))
    (tmp_path / "there.db").touch()
    with pytest.raises(RestoreRefused, match="exists"):
        await restore(cluster.parts, RestoreOrder(f"sqlite://{tmp_path}/there.db", waits=False))
    await cluster.service.close()
