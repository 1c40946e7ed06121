"""What must hold between metadata and store, whatever was killed. Checked from outside, when nothing runs."""

import asyncio
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from braidlog.objects.format import read_footer
from braidlog.objects.keys import parse_data_key
from braidlog.objects.open import open_store
from braidlog.objects.store import Store
from braidlog.records.batch import has_valid_crc, scan_batches
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy


@dataclass(slots=True)
class Findings:
    object_count: int = 0
    extent_count: int = 0
    record_count: int = 0
    orphans: list[str] = field(default_factory=list)
    """Keys of objects that the store has and nobody points to: failed uploads and commits, not yet swept."""


def check_consistency(metadata: Path, store_url: str) -> Findings:
    """Raises AssertionError for the first thing that is wrong."""
    return asyncio.run(_check(metadata, store_url))


async def _check(metadata: Path, store_url: str) -> Findings:
    connection = sqlite3.connect(metadata)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        partitions = {
            partition_id: (start, following, settled)
            for partition_id, start, following, settled in connection.execute(
                "SELECT partition_id, log_start_offset, next_offset, settled_offset FROM partitions"
            )
        }
        extents = _read_extents(connection, {number: bounds[2] for number, bounds in partitions.items()})
        objects = connection.execute("SELECT number, nonce, object_key, size_bytes, deleted_ms FROM objects").fetchall()
        live_counts = dict(connection.execute("SELECT number, live_count FROM objects WHERE live_count > 0").fetchall())
    finally:
        connection.close()
    store = open_store(store_url, clock=SystemClock(), entropy=SystemEntropy())
    try:
        findings = Findings(extent_count=len(extents))
        # The tables by partition may lag behind, but what an object was promised is somewhere, all of it.
        counts = Counter(number for _, _, _, number, _, _, inline in extents if inline is None)
        assert counts == live_counts, "an object lost some of its extents"
        by_number = {number: (nonce, key, size) for number, nonce, key, size, deleted in objects if deleted is None}
        assert len({nonce for _, nonce, *_ in objects}) == len(objects), "an object was sequenced twice"
        assert len({key for _, _, key, *_ in objects}) == len(objects), "a key was sequenced twice"
        await _check_objects(store, by_number)
        findings.object_count = len(by_number)
        await _check_partitions(store, partitions, extents, by_number, findings)
        known = {key for _, _, key, *_ in objects}
        findings.orphans = [key for key in await list_data_keys(store) if key not in known]
        return findings
    finally:
        await store.close()


def _read_extents(connection: sqlite3.Connection, settled: dict[int, int]) -> list[tuple[Any, ...]]:
    columns = "partition_id, base_offset, end_offset, object_number, position, length, inline_bytes"
    extents = connection.execute(f"SELECT {columns} FROM extents").fetchall()
    for (encoded,) in connection.execute("SELECT extents FROM recent_objects"):
        recent = [row for row in msgspec.msgpack.decode(encoded) if row[1] >= settled[row[0]]]
        extents += [(*row[:6], row[8]) for row in recent]
    return sorted(extents)


async def _check_objects(store: Store, objects: dict[int, tuple[bytes, str, int]]) -> None:
    """Every object of the index is there, whole, and the one that was sequenced."""
    for nonce, key, size in objects.values():
        meta = await store.head(key)
        assert meta.size == size, key
        footer = await read_footer(store, key)
        assert footer.nonce == nonce, key
        assert footer.write_epoch == parse_data_key(key).write_epoch


async def _check_partitions(
    store: Store,
    partitions: dict[int, tuple[int, int, int]],
    extents: list[tuple[Any, ...]],
    objects: dict[int, tuple[bytes, str, int]],
    findings: Findings,
) -> None:
    """Offsets without gap or overlap; bytes that hold as many records as offsets; sequences without gap or repeat."""
    end_of: dict[int, int] = {}
    sequences: dict[tuple[int, int, int], int] = {}
    for partition_id, base, end, number, position, length, inline in extents:
        start, following, settled = partitions[partition_id]
        before = end_of.get(partition_id)
        if before is None:
            assert base <= start, f"partition {partition_id} begins at {base}, its log at {start}"
        else:
            assert base == before, f"partition {partition_id} goes from {before} to {base}"
        assert base < end
        assert end <= following or base >= settled
        end_of[partition_id] = end
        if inline is None:
            data = memoryview(await store.get_range(objects[number][1], position, position + length))
        else:
            data = memoryview(inline)
        count = 0
        for at, header in scan_batches(data):
            assert has_valid_crc(data[at : at + header.total_bytes], header)
            count += header.offset_count
            if header.producer_id >= 0 and not header.is_control:
                place = (partition_id, header.producer_id, header.producer_epoch)
                expected = sequences.get(place)
                assert expected is None or header.base_sequence == expected, (
                    f"{place}: sequence {header.base_sequence} where {expected} was due"
                )
                sequences[place] = (header.base_sequence + header.offset_count) % 2**31
        assert count == end - base, f"{count} records for offsets {base} to {end} of partition {partition_id}"
        findings.record_count += count
    for partition_id, (start, following, _) in partitions.items():
        # Extents that are not in the table yet may go beyond what the partition's row knows.
        assert end_of.get(partition_id, start) >= following, f"partition {partition_id} ends too early in the index"


async def list_data_keys(store: Store) -> list[str]:
    keys: list[str] = []
    after: str | None = None
    while True:
        page = await store.list("data/", after=after)
        keys += [meta.key for meta in page.objects]
        if page.next_after is None:
            return keys
        after = page.next_after
