"""Today's formats of the metadata stay readable for ever: a delta, a snapshot with its schema, an increment."""

from pathlib import Path

import apsw
from tests.control.driver import start_plane
from tests.fakes import FakeClock

from braidlog.control.interface import SnapshotRequest
from braidlog.control.metadata.connection import connect, newest_schema
from braidlog.control.metadata.deltas import Delta, DeltaKind, decode_delta, encode_delta
from braidlog.control.metadata.image import load_snapshot
from braidlog.control.metadata.increments import Increment, decode_increment, encode_increment
from braidlog.control.metadata.store import load_migrations
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.owner import claim

GOLDEN = Path(__file__).parent / "golden"
CLUSTER_ID = "00000000-0000-4000-8000-000000000074"
NONCE = bytes(range(16))
DELTA = Delta(42, b"p" * 16, DeltaKind.CHANGES, 7, 73, "the control plane at a:9190", b"\x00changes\xff")
INCREMENT = Increment(
    5,
    73,
    1_700_000_000_000,
    NONCE,
    [
        [("INSERT INTO facts (name, value) VALUES (?, ?)", [("a", "1"), ("b", "é")])],
        [("UPDATE counters SET value = ? WHERE name = ?", [(1 << 62, "n")]), ("DELETE FROM objects", [()])],
        [("INSERT INTO x VALUES (?, ?, ?)", [(None, b"\x00\xff", 1.5)])],
    ],
)


def test_a_delta_is_written_and_read_the_same_for_ever() -> None:
    data = (GOLDEN / "delta-v1.bin").read_bytes()
    assert encode_delta(DELTA, NONCE) == data
    assert decode_delta(data, 42) == (DELTA, NONCE)


def test_an_increment_can_be_read_for_ever() -> None:
    """Its bytes depend on the compressor, so only reading is compared."""
    data = (GOLDEN / "increment-v1.bin").read_bytes()
    for each in (data, encode_increment(INCREMENT)):
        found = decode_increment(each, "golden")
        assert [[(sql, [tuple(row) for row in rows]) for sql, rows in group] for group in found.transactions] == (
            INCREMENT.transactions
        )
        assert (found.first_position, found.end_position, found.nonce) == (5, 8, NONCE)


async def test_a_snapshot_of_schema_76_opens_with_its_data(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    load_snapshot((GOLDEN / "snapshot-schema-76.bin").read_bytes(), path)
    old = apsw.Connection(str(path))
    assert old.execute("SELECT MAX(version) FROM schema_version").fetchall() == [(76,)]
    old.close()
    bucket = MemoryBucket()
    await claim(MemoryStore(bucket, url="memory://", clock=FakeClock()), CLUSTER_ID)
    plane = await start_plane(f"sqlite://{path}", bucket=bucket)
    snapshot = await plane.service.snapshot(SnapshotRequest())
    assert [(each.name, len(each.partition_ids)) for each in snapshot.topics] == [("events", 2)]
    assert [each.high_watermark for each in snapshot.bounds] == [10, 0]
    await plane.service.close()
    migrated = connect(str(path))
    assert migrated.execute("SELECT MAX(version) FROM schema_version").fetchall() == [(newest_schema(),)]
    migrated.close()


def test_no_two_migrations_have_the_same_number() -> None:
    numbers = [version for version, _ in load_migrations()]
    assert len(set(numbers)) == len(numbers)
