"""Makes the metadata again from its copy in the bucket."""

import asyncio
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import apsw
import structlog

from braidlog.control.metadata.connection import SqliteTransaction, connect, migrate_to, typed_errors
from braidlog.control.metadata.copies import CopyLog
from braidlog.control.metadata.image import load_snapshot
from braidlog.control.metadata.increments import Increment, Statement, read_position, replay
from braidlog.control.metadata.store import MetadataDamaged

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedCopy:
    restore: int
    """The restore that made the metadata of which this is the copy."""
    position: int
    written_ms: int
    """When its newest increment was written; 0: it has none."""
    increment_count: int
    damage: str = ""
    """Why the copy ends earlier than what is stored; empty: it does not."""


async def load_copy(copies: CopyLog, path: Path) -> LoadedCopy | None:
    """Write the newest state that the copies hold to a SQLite file.

    Returns None if there is no copy. Raises `MetadataDamaged` if there is one, and none of it can be read.
    """
    damage: MetadataDamaged | None = None
    for restore in reversed(await copies.folders()):
        for number in reversed((await copies.objects(restore)).snapshots):
            data = await copies.read_snapshot(restore, number)
            try:
                await asyncio.to_thread(load_snapshot, data, path)
            except MetadataDamaged as error:
                _log.error("a snapshot of the copy is damaged", restore=restore, number=number, reason=str(error))
                damage = error
                continue
            return await _apply_increments(copies, restore, number, path)
    if damage is not None:
        raise damage
    return None


async def _apply_increments(copies: CopyLog, restore: int, start: int, path: Path) -> LoadedCopy:
    written_ms = count = 0
    trouble = ""
    numbers = [number for number in (await copies.objects(restore)).increments if number >= start]
    for number in numbers:
        try:
            increment = await copies.read_increment(restore, number)
            if not await asyncio.to_thread(_apply, path, increment):
                trouble = f"increment {number} does not follow the one before it"
                break
        except MetadataDamaged as error:
            trouble = str(error)
            break
        written_ms, count = increment.created_ms, count + 1
    position = await asyncio.to_thread(_position, path)
    return LoadedCopy(restore, position, written_ms, count, trouble)


def _position(path: Path) -> int:
    with typed_errors(str(path)), closing(connect(str(path), durable=False)) as connection:
        return read_position(SqliteTransaction(connection))


def _apply(path: Path, increment: Increment) -> bool:
    """Apply the transactions that the file lacks.

    Returns False if some before them are missing.
    """
    with typed_errors(str(path)), closing(connect(str(path), durable=False)) as connection:
        tx = SqliteTransaction(connection)
        position = read_position(tx)
        if increment.first_position > position + 1:
            return False
        with connection:
            migrate_to(connection, increment.schema_version)
            for at, statements in enumerate(increment.transactions, increment.first_position):
                if at > position:
                    _replay(tx, at, statements)
            tx.execute("UPDATE copy_position SET position = ?", (max(position, increment.end_position - 1),))
    return True


def _replay(tx: SqliteTransaction, position: int, statements: list[Statement]) -> None:
    try:
        replay(tx, statements)
    except apsw.Error as error:
        raise MetadataDamaged(f"transaction {position} does not fit the copy ({error})") from error
