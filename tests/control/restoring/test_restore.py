"""Restores: nothing acknowledged is missing, no offset names two records, and what changed is told."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from tests.control.driver import create_topic, new_producer
from tests.control.restoring.driver import Cluster, StoringControl, records
from tests.control.transactions.driver import TransactionalProducer, aborted
from tests.jobs.driver import JOBS, Writer, read_all, work_off

from braidlog.control.interface import (
    AlterClientQuotas,
    AlterConfigs,
    CommitOffsets,
    ConfigChange,
    ControlPlane,
    DeleteRecords,
    FetchOffsets,
    OffsetToCommit,
    QuotaChange,
    QuotaOperation,
    SnapshotRequest,
)
from braidlog.control.metadata.shipped import LEASE_S, ShippedMetadata
from braidlog.control.restoring.restore import FENCE_WAIT_S, RestoreOrder, back_up, restore, verify
from braidlog.control.restoring.sources import RestoreRefused
from braidlog.control.settings import ControlSettings
from braidlog.records.batch import scan_batches
from braidlog.runtime.errors import Fenced


@pytest.fixture
async def lost(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster that a test will lose."""
    cluster = await Cluster(tmp_path).start()
    yield cluster
    if cluster.service.fenced.is_set() or list(tmp_path.glob("metadata.db")):
        await cluster.service.close()


async def test_records_keep_their_offsets_up_to_the_copy_and_none_is_missing(lost: Cluster, tmp_path: Path) -> None:
    topic = await create_topic(lost.service, "events", 2)
    for partition in (0, 1):
        await lost.commit(topic, [records(3)], partition)
    await lost.ship()
    kept = await lost.places(topic)
    for _ in range(3):
        await lost.commit(topic, [records(2), records(1)])
    told = await lost.places(topic)
    end_offset = lost.service.parts.catalog.partitions[topic.partition_ids[0]].next_offset
    await lost.lose()
    after, report = await lost.restored(tmp_path / "after")
    places = await after.places(topic)
    assert places.keys() == told.keys()
    assert {key: places[key] for key in kept} == kept
    assert all(places[key] >= end_offset for key in told.keys() - kept.keys())
    [partition] = report.partitions
    assert (partition.topic, partition.partition, partition.kept_end_offset) == ("events", 0, 3)
    assert partition.appended_records == 9
    assert partition.gap_end_offset >= end_offset
    bounds = {each.partition_id: each for each in (await after.service.snapshot(SnapshotRequest())).bounds}
    assert bounds[topic.partition_ids[0]].leader_epochs == ((0, 0), (1, 3))
    assert bounds[topic.partition_ids[1]].high_watermark == 3
    await after.service.close()


async def test_the_gap_is_one_batch_without_records(lost: Cluster, tmp_path: Path) -> None:
    topic = await create_topic(lost.service)
    await lost.commit(topic, [records(3)])
    await lost.lose()
    after, report = await lost.restored(tmp_path / "after")
    [gap, appended] = [extent for extent, _ in await after.extents(topic)]
    assert gap.inline is not None
    [(_, header)] = list(scan_batches(memoryview(gap.inline)))
    assert (header.record_count, header.base_offset, header.end_offset) == (0, gap.base_offset, gap.end_offset)
    assert gap.end_offset == appended.base_offset == report.partitions[0].gap_end_offset
    await after.service.close()


async def test_consumers_read_every_record_once(lost: Cluster, tmp_path: Path) -> None:
    topic = await create_topic(lost.service)
    writer = Writer(lost)  # type: ignore[arg-type]
    for number in range(4):
        await writer.write(topic, {0: [(b"k", b"%d/%d" % (number, at)) for at in range(3)]})
        if number == 1:
            await lost.ship()
    before = await read_all(lost, topic)  # type: ignore[arg-type]
    await lost.lose()
    after, _ = await lost.restored(tmp_path / "after")
    found = await read_all(after, topic)  # type: ignore[arg-type]
    assert [each.value for each in found] == [each.value for each in before]
    assert found[:6] == before[:6]
    assert found[6].offset > before[-1].offset
    await after.service.close()


async def test_batches_of_idempotent_producers_are_put_in_order_and_not_doubled(lost: Cluster, tmp_path: Path) -> None:
    topic = await create_topic(lost.service)
    pid = await new_producer(lost.service)
    await lost.commit(topic, [records(2, 0, pid=pid)])
    await lost.ship()
    # Its names say nothing of the order: the later batch comes first in every listing.
    first = await lost.upload(topic, [records(2, 2, pid=pid)], incarnation="z")
    second = await lost.upload(topic, [records(3, 4, pid=pid)], incarnation="a")
    again = await lost.upload(topic, [records(2, 0, pid=pid)], incarnation="b")
    for request in (first, second, again):
        await lost.service.commit_object(request)
    await lost.lose()
    after, report = await lost.restored(tmp_path / "after")
    places = await after.places(topic)
    assert again.key not in places
    assert places[first.key] + 2 == places[second.key]
    assert report.partitions[0].appended_records == 5
    # The producer goes on where it was, and a repeated batch is recognised.
    verdict = await after.commit(topic, [records(3, 4, pid=pid), records(1, 7, pid=pid)])
    assert [each.duplicate for each in verdict.extents[0].verdicts] == [True, False]
    await after.service.close()


async def test_an_object_that_was_restored_is_known_to_whoever_commits_it_again(lost: Cluster, tmp_path: Path) -> None:
    topic = await create_topic(lost.service)
    await lost.ship()
    request = await lost.upload(topic, [records(2)])
    await lost.lose()
    after, _ = await lost.restored(tmp_path / "after")
    before = await after.places(topic)
    verdict = await after.service.commit_object(request)
    assert verdict.extents[0].verdicts[0].base_offset == before[request.key]
    assert await after.places(topic) == before
    await after.service.close()


async def test_ended_transactions_stay_as_they_ended_and_open_ones_are_aborted(lost: Cluster, tmp_path: Path) -> None:
    topic = await create_topic(lost.service, "events", 4)
    control = cast(ControlPlane, StoringControl(lost))
    good, bad, open_one, late = (TransactionalProducer(control, name) for name in ("good", "bad", "open", "late"))
    for producer in (good, bad, open_one, late):
        await producer.init()
    await open_one.begin(topic, 2)
    for producer, partition, ends_well in ((good, 0, True), (bad, 1, False)):
        await producer.begin(topic, partition)
        assert await producer.end(commit=ends_well) == 0
    before = [await aborted(lost.service, topic, partition) for partition in (0, 1)]
    await late.begin(topic, 3)  # the copy knows nothing of it
    await lost.lose()
    after, report = await lost.restored(tmp_path / "after")
    assert report.transactional_ids == 4
    assert [await aborted(after.service, topic, partition) for partition in (0, 1)] == before
    assert await aborted(after.service, topic, 2) == [(open_one.producer_id, 0)]
    assert [(each.partition, each.appended_records, each.aborted_records) for each in report.partitions] == [(3, 0, 1)]
    snapshot = await after.service.snapshot(SnapshotRequest())
    assert all(each.first_unstable_offset == -1 for each in snapshot.bounds)
    # Whoever wrote before the restore is fenced, and begins again with a new epoch.
    late.control = after.service
    assert (await late.write(topic, 3))[0] != 0
    assert await late.init() == 0
    await late.begin(topic, 3)
    assert await late.end(commit=True) == 0
    await after.service.close()


async def test_a_merged_object_is_never_appended(tmp_path: Path) -> None:
    lost = await Cluster(tmp_path, settings=ControlSettings(grace_epochs=2, jobs=JOBS)).start()
    topic = await create_topic(lost.service)
    writer = Writer(lost)  # type: ignore[arg-type]
    for number in range(8):
        await writer.write(topic, {0: [(b"k", b"%d" % number)]})
    await lost.ship()
    before = await read_all(lost, topic)  # type: ignore[arg-type]
    assert await work_off(lost) == 1  # type: ignore[arg-type]
    await lost.lose()
    after, report = await lost.restored(tmp_path / "after")
    assert report.objects_rewritten == 1
    assert await read_all(after, topic) == before  # type: ignore[arg-type]
    await after.service.close()


async def test_groups_configs_quotas_and_deletions_are_there(lost: Cluster, tmp_path: Path) -> None:
    topic = await create_topic(lost.service)
    await lost.commit(topic, [records(10)])
    await lost.service.commit_offsets(
        CommitOffsets("group", -1, "", None, [OffsetToCommit(topic.topic_id, 0, 7, 0, "")])
    )
    await lost.service.alter_configs(AlterConfigs(2, "events", [ConfigChange("retention.ms", 0, "1234567")]))
    entity: list[tuple[str, str | None]] = [("user", "alice")]
    quota = QuotaChange(entity, [QuotaOperation("producer_byte_rate", 1000.0)])
    await lost.service.alter_client_quotas(AlterClientQuotas([quota]))
    await lost.service.delete_records(DeleteRecords(topic.partition_ids[0], 4))
    await lost.ship()
    await lost.lose()
    after, report = await lost.restored(tmp_path / "after")
    assert report.partitions == []
    snapshot = await after.service.snapshot(SnapshotRequest())
    assert [(each.log_start_offset, each.high_watermark) for each in snapshot.bounds] == [(4, 10)]
    assert snapshot.topics[0].configs == {"retention.ms": "1234567"}
    assert [each.values for each in snapshot.client_quotas] == [{"producer_byte_rate": 1000.0}]
    offsets = await after.service.fetch_offsets(FetchOffsets("group", None))
    assert [each.offset for each in offsets.offsets] == [7]
    await after.service.close()


async def test_a_dry_run_changes_nothing_and_says_the_same(lost: Cluster, tmp_path: Path) -> None:
    topic = await create_topic(lost.service)
    await lost.ship()
    await lost.commit(topic, [records(5)])
    await lost.lose()
    keys = list(lost.bucket.keys)
    dry = await restore(lost.parts, RestoreOrder("sqlite:///nowhere", is_dry_run=True))
    assert list(lost.bucket.keys) == keys
    after, report = await lost.restored(tmp_path / "after")
    assert dry.partitions == report.partitions
    assert (dry.restore, dry.objects_appended) == (report.restore, report.objects_appended) == (1, 1)
    await after.service.close()


async def test_a_second_restore_goes_on_from_the_first(lost: Cluster, tmp_path: Path) -> None:
    topic = await create_topic(lost.service)
    await lost.commit(topic, [records(5)])
    await lost.lose()
    after, _ = await lost.restored(tmp_path / "after")
    await after.commit(topic, [records(1)])
    await after.ship()
    places = await after.places(topic)
    await after.commit(topic, [records(1)])
    await after.lose()
    again, report = await after.restored(tmp_path / "again")
    assert report.restore == 2
    found = await again.places(topic)
    assert {key: found[key] for key in places} == places
    assert len(found) == 3
    snapshot = await again.service.snapshot(SnapshotRequest())
    assert [epoch for epoch, _ in snapshot.bounds[0].leader_epochs] == [1, 2]  # it had no records before the first
    await again.service.close()


async def test_metadata_that_refers_to_deleted_objects_is_refused(lost: Cluster, tmp_path: Path) -> None:
    topic = await create_topic(lost.service)
    await lost.commit(topic, [records(5)])
    await lost.ship()
    backup = tmp_path / "backup.db"
    await back_up(lost.parts, backup)
    [key] = await lost.places(topic)
    await lost.lose()
    await lost.store.delete([key])
    with pytest.raises(RestoreRefused, match="gone"):
        await restore(lost.parts, RestoreOrder(f"sqlite://{tmp_path}/new.db", waits=False))
    assert not (tmp_path / "new.db").exists()


async def test_a_backup_is_restored_only_if_the_bucket_has_nothing_newer(lost: Cluster, tmp_path: Path) -> None:
    topic = await create_topic(lost.service)
    await lost.ship()
    backup = tmp_path / "backup.db"
    assert (await back_up(lost.parts, backup)).kind == "copy"
    await lost.commit(topic, [records(5)])
    await lost.ship()
    await lost.lose()
    order = RestoreOrder(f"sqlite://{tmp_path}/after/metadata.db", backup=backup, waits=False)
    with pytest.raises(RestoreRefused, match="older"):
        await restore(lost.parts, order)
    for key in [each for each in lost.bucket.keys if each.startswith("copy/")]:
        await lost.store.delete([key])
    after, report = await lost.restored(tmp_path / "after", order)
    assert report.source == "file"
    assert len(await after.places(topic)) == 1
    await after.service.close()


async def test_the_old_control_plane_is_fenced_before_the_bucket_is_read(lost: Cluster, tmp_path: Path) -> None:
    assert FENCE_WAIT_S > LEASE_S
    topic = await create_topic(lost.service)
    await lost.ship()
    after, _ = await lost.restored(tmp_path / "after")
    lost.clock.advance(LEASE_S)
    with pytest.raises(Fenced):
        await lost.commit(topic, [records(1)])
    await after.commit(topic, [records(1)])
    await after.service.close()


async def test_a_restore_that_did_not_finish_is_done_again(lost: Cluster, tmp_path: Path) -> None:
    topic = await create_topic(lost.service)
    await lost.commit(topic, [records(5)])
    await lost.lose()
    await lost.store.put("restores/0000000001", b"")
    after, report = await lost.restored(tmp_path / "after")
    assert report.restore == 2
    assert len(await after.places(topic)) == 1
    await after.service.close()


async def test_verify_says_what_a_restore_would_do(lost: Cluster) -> None:
    topic = await create_topic(lost.service)
    await lost.ship()
    await lost.commit(topic, [records(5)])
    report = await verify(lost.parts)
    assert (report.source, report.objects_appended, report.damage) == ("copy", 1, "")


async def test_a_bucket_without_a_copy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RestoreRefused, match="no copy"):
        await restore(Cluster(tmp_path).parts, RestoreOrder(f"sqlite://{tmp_path}/new.db", waits=False))


async def test_nothing_is_deleted_before_the_copy_knows_that_nothing_refers_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ControlSettings(grace_epochs=2, sweep_interval_s=1e9)  # the test alone sweeps
    lost = await Cluster(tmp_path, settings=settings).start()
    topic = await create_topic(lost.service)
    await lost.commit(topic, [records(1)])
    [key] = await lost.places(topic)
    await lost.service.delete_records(DeleteRecords(topic.partition_ids[0], 1))
    lost.clock.advance(lost.settings.unreferenced_grace_s + 1)
    await lost.commit(topic, [records(1)])
    await lost.ship()  # from here on the copy advances only if somebody waits for it: the clock stands still
    copy, delete = cast(ShippedMetadata, lost.metadata), lost.store.delete
    await lost.commit(topic, [records(1)])
    missing_counts: list[int] = []

    async def watched(keys: Sequence[str]) -> None:
        if key in keys:
            missing_counts.append(copy._position - copy.copy_position)
        await delete(keys)

    monkeypatch.setattr(lost.store, "delete", watched)
    assert (await lost.service.parts.sweeper.run_once()).unreferenced_count == 1
    assert missing_counts == [0]
    assert key not in lost.bucket.keys
    await lost.service.close()
