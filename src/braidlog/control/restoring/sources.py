"""Sources to make the metadata from: the bucket, a file, or metadata itself."""

import asyncio
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from braidlog.control.metadata.bucket import BucketMetadata
from braidlog.control.metadata.connection import SqliteTransaction, connect, migrate, typed_errors
from braidlog.control.metadata.copies import CopyLog
from braidlog.control.metadata.copy_reader import load_copy
from braidlog.control.metadata.counters import read_counter
from braidlog.control.metadata.deltas import DELTA_PREFIX, SNAPSHOT_PREFIX
from braidlog.control.metadata.image import load_snapshot
from braidlog.control.metadata.increments import read_position
from braidlog.control.metadata.shipped import RESTORE_NUMBER
from braidlog.control.metadata.store import BucketParts, DumpedMetadata, open_metadata
from braidlog.objects.store import Store
from braidlog.runtime.errors import BraidError, InvalidSetting, Remedy


class RestoreRefused(BraidError):
    """What is in the bucket does not allow this restore."""

    remedy = Remedy.FIX_INPUT


@dataclass(frozen=True, slots=True)
class Source:
    """Metadata that was written to a SQLite file."""

    kind: str
    """`deltas`: of `bucket` metadata. `copy`: the shipped copy. `file`: a backup. `metadata`: the metadata itself."""
    is_exact: bool
    """Whether nothing can lie behind it: every transaction is in it."""
    restore: int
    """The restore that made this metadata; 0: none did."""
    position: int
    written_ms: int = 0
    """When its newest part was written; 0: not known."""
    damage: str = ""
    """Why it ends earlier than what is stored; empty: it does not."""


async def load_from_bucket(parts: BucketParts, path: Path, *, take_over: bool) -> Source:
    """Write the newest metadata that the bucket has to a SQLite file.

    With `take_over`, nobody can write to `bucket` metadata any more.
    """
    copies = CopyLog(parts.store, parts.clock, parts.entropy.fork("copies"))
    deltas = await _load_deltas(parts, path, take_over=take_over) if await _has_deltas(parts.store) else None
    newest_copy = max(await copies.folders(), default=-1)
    if deltas is not None and deltas.restore >= newest_copy:
        return deltas
    loaded = await load_copy(copies, path)
    if loaded is None:
        raise RestoreRefused(
            f"{parts.store.url} has no copy of the metadata",
            help="Is it the right store? Was metadata_copy switched off? A backup can be given with --from.",
        )
    return Source("copy", False, loaded.restore, loaded.position, loaded.written_ms, loaded.damage)


async def load_from_file(file: Path, path: Path) -> Source:
    """Copy a backup to a SQLite file of its own."""

    def copy() -> Source:
        with typed_errors(str(file)):
            if not file.is_file():
                raise InvalidSetting(f"{file} is not a file", help="Name a file that `braid control backup` wrote.")
            path.write_bytes(file.read_bytes())
        return _describe("file", path)

    return await asyncio.to_thread(copy)


async def load_from_metadata(url: str, parts: BucketParts, path: Path) -> Source:
    """Write metadata to a SQLite file, so that nobody can write to it any more."""
    if url.startswith("bucket://"):
        return await _load_deltas(parts, path, take_over=True)
    metadata = await open_metadata(url, parts)
    try:
        await metadata.acquire_fencing_epoch()
        assert isinstance(metadata, DumpedMetadata)
        content = await metadata.dump()
    finally:
        await metadata.close()
    await asyncio.to_thread(path.write_bytes, content)
    return await asyncio.to_thread(_describe, "metadata", path)


async def _has_deltas(store: Store) -> bool:
    for prefix in (DELTA_PREFIX, SNAPSHOT_PREFIX):
        if (await store.list(prefix, limit=1)).objects:
            return True
    return False


async def _load_deltas(parts: BucketParts, path: Path, *, take_over: bool) -> Source:
    metadata = await BucketMetadata.open(None, parts.store, parts.clock, parts.entropy, holder=parts.holder)
    try:
        if take_over:
            await metadata.acquire_fencing_epoch()
        data = await metadata.export()
    finally:
        await metadata.close()
    await asyncio.to_thread(load_snapshot, data, path)
    return await asyncio.to_thread(_describe, "deltas", path)


def _describe(kind: str, path: Path) -> Source:
    """Bring the file's schema up to date, and read what it says of itself."""
    with typed_errors(str(path)), closing(connect(str(path))) as connection:
        migrate(connection)
        connection.execute("DROP TABLE IF EXISTS image_position")
        tx = SqliteTransaction(connection)
        return Source(kind, kind != "file", read_counter(tx, RESTORE_NUMBER), read_position(tx))
