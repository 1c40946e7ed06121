"""The metadata store: fencing, migrations, full disks."""

from pathlib import Path

import apsw
import pytest
from tests.control.driver import batch, commit, create_topic, make_object, outcomes, start_plane

from braidlog.control.interface import BoundsRequest, SnapshotRequest
from braidlog.control.metadata.store import (
    MetadataConflict,
    MetadataDamaged,
    MetadataFull,
    SchemaTooNew,
    Transaction,
    load_migrations,
    open_metadata,
)
from braidlog.runtime.errors import Fenced, InvalidSetting


@pytest.mark.parametrize("url", ["postgresql://x", "sqlite:relative", "sqlite://relative", "/path", ""])
async def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidSetting):
        await open_metadata(url)


async def test_a_missing_directory_is_an_invalid_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting):
        await open_metadata(f"sqlite://{tmp_path}/none/metadata.db")


async def test_another_file_is_not_taken_for_metadata(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").write_bytes(b"something else entirely" * 1000)
    with pytest.raises(MetadataDamaged):
        await open_metadata(f"sqlite://{tmp_path}/metadata.db")


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = f"{tmp_path}/metadata.db"
    await (await open_metadata(f"sqlite://{path}")).close()
    connection = apsw.Connection(path)
    connection.execute("INSERT INTO schema_version VALUES (?)", (load_migrations()[-1][0] + 1,))
    connection.close()
    with pytest.raises(SchemaTooNew):
        await open_metadata(f"sqlite://{path}")


async def test_a_failed_transaction_leaves_nothing() -> None:
    metadata = await open_metadata("sqlite://")
    await metadata.acquire_fencing_epoch()

    def write(tx: Transaction) -> None:
        tx.execute("INSERT INTO facts (name, value) VALUES (?, ?)", ("a", "1"))
        tx.execute("INSERT INTO facts (name, value) VALUES (?, ?)", ("a", "2"))

    with pytest.raises(MetadataConflict):
        await metadata.transact(write)
    assert await metadata.read(lambda tx: tx.query("SELECT * FROM facts")) == []
    await metadata.close()


async def test_nobody_writes_or_reads_without_the_newest_epoch(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    first, second = await open_metadata(url), await open_metadata(url)
    with pytest.raises(Fenced):
        await first.transact(lambda tx: tx.execute("DELETE FROM facts"))
    assert await first.acquire_fencing_epoch() == 1
    assert await second.acquire_fencing_epoch() == 2
    for call in (first.transact, first.read):
        with pytest.raises(Fenced):
            await call(lambda tx: tx.query("SELECT * FROM facts"))
    await second.transact(lambda tx: tx.execute("DELETE FROM facts"))
    await first.close()
    await second.close()


async def test_a_replaced_control_plane_can_only_fail(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    old = await start_plane(url)
    topic = await create_topic(old.service)
    await commit(old.service, topic, [batch(3)])
    new = await start_plane(url)
    for call in (
        commit(old.service, topic, [batch()]),
        create_topic(old.service, "other"),
        old.service.snapshot(SnapshotRequest()),
        old.service.current_bounds(BoundsRequest(topic.partition_ids)),
    ):
        with pytest.raises(Fenced):
            await call
    assert old.service.fenced.is_set()
    assert await commit(new.service, topic, [batch()]) == [(0, 3, False)]
    await old.service.close()
    await new.service.close()


async def test_a_full_disk_fails_the_commit_and_nothing_else(tmp_path: Path) -> None:
    plane = await start_plane(f"sqlite://{tmp_path}/metadata.db")
    control = plane.service
    topic = await create_topic(control, "t", 500)
    await commit(control, topic, [batch()])

    def limit_pages(count: int) -> None:
        plane.metadata._writer.execute(f"PRAGMA max_page_count = {count}")  # type: ignore[attr-defined]

    limit_pages(1)  # SQLite makes it the number of pages there are
    wide = make_object([(topic.topic_id, index, [batch(), batch()] * 40) for index in range(500)])
    with pytest.raises(MetadataFull):
        await control.commit_object(wide)
    bounds = await control.current_bounds(BoundsRequest(topic.partition_ids[:2]))
    assert [bound.high_watermark for bound in bounds.bounds] == [1, 0]
    limit_pages(100_000)
    verdict = await control.commit_object(wide)
    assert outcomes(verdict)[:2] == [(0, 1, False), (0, 2, False)]
    assert outcomes(verdict)[80] == (0, 0, False)
    await control.close()


def test_no_two_steps_of_the_schema_have_the_same_version() -> None:
    """Whoever has taken one of them would never take the other."""
    versions = [version for version, _ in load_migrations()]
    assert len(versions) == len(set(versions))
