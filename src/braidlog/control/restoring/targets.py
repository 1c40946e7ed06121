"""Writes restored metadata to where a control plane will use it."""

import asyncio
import shutil
from contextlib import closing
from pathlib import Path

from braidlog.control.metadata.connection import connect
from braidlog.control.metadata.counters import read_counter
from braidlog.control.metadata.shipped import RESTORE_NUMBER
from braidlog.control.metadata.store import BucketParts, MetadataStore, Transaction, open_metadata
from braidlog.control.metadata.tables import empty_tables, pages_of, tables_of
from braidlog.control.restoring.sources import RestoreRefused

_LAST = "counters"
"""The table with the number of the restore. Until it is written, no control plane starts on the target."""


async def check_target(url: str, parts: BucketParts, newest_restore: int) -> None:
    """Raise `RestoreRefused` if the target holds metadata that is in use."""
    path = _sqlite_path(url)
    if path is not None:
        if path.exists():
            raise RestoreRefused(f"{path} exists already", help="Name a new file, or move that one away.")
        return
    metadata = await open_metadata(url, parts)
    try:
        is_used, restore = await metadata.peek(_describe)
    finally:
        await metadata.close()
    if is_used and restore >= newest_restore:
        raise RestoreRefused(f"{url} holds the metadata that is in use", help="Name an empty database.")


async def write_target(url: str, parts: BucketParts, file: Path) -> None:
    """Write the metadata in a SQLite file to the target."""
    path = _sqlite_path(url)
    if path is not None:
        await asyncio.to_thread(_move, file, path)
        return
    metadata = await open_metadata(url, parts)
    try:
        await metadata.acquire_fencing_epoch()
        await _write_tables(metadata, file)
    finally:
        await metadata.close()


async def _write_tables(metadata: MetadataStore, file: Path) -> None:
    with closing(connect(str(file))) as source:
        tables = sorted(tables_of(source), key=lambda table: table.name == _LAST)
        await metadata.transact(lambda tx: empty_tables(tx, tables))
        for table in tables:
            for page in pages_of(source, table):
                await metadata.transact(lambda tx, table=table, page=page: tx.executemany(table.insert, page))  # type: ignore[misc]


def _describe(tx: Transaction) -> tuple[bool, int]:
    return bool(tx.query("SELECT 1 FROM facts WHERE name = 'cluster_id'")), read_counter(tx, RESTORE_NUMBER)


def _sqlite_path(url: str) -> Path | None:
    scheme, _, path = url.partition("://")
    return Path(path) if scheme == "sqlite" else None


def _move(file: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(connect(str(file))) as connection:
        connection.wal_checkpoint()
        connection.execute("PRAGMA journal_mode = DELETE")
    unfinished = path.with_name(path.name + "-unfinished")
    shutil.copyfile(file, unfinished)
    unfinished.rename(path)
