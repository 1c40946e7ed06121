"""The metadata store in SQLite: one writer, write-ahead log, synced at every commit."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import apsw

from braidlog.control.metadata import (
    MetadataBusy,
    MetadataConflict,
    MetadataDamaged,
    MetadataError,
    MetadataFull,
    MetadataUnavailable,
    Row,
    SchemaTooNew,
    Value,
    load_migrations,
)
from braidlog.runtime.errors import Fenced, InvalidSetting

T = TypeVar("T")

BUSY_TIMEOUT_MS = 5_000
WAL_PAGES_BEFORE_CHECKPOINT = 2_000
"""The log is copied into the file beside the writer, whenever it has grown by so many pages."""
WAL_PAGES_MAX = 16_000
"""Only when nobody writes can the log start over: here the writer copies the little that is left itself."""
CACHE_KIB = 64 * 1024

_DIALECT = (("BIGINT", "INTEGER"), ("BYTEA", "BLOB"))
"""Migrations are written in portable SQL; SQLite's integers are 64 bits wide, and only INTEGER can be a row id."""
_HINT = re.compile(r"/\* sqlite: (.*?) \*/")
"""What only SQLite should see, for example the clustering of a table."""


@contextmanager
def _typed_errors(where: str) -> Iterator[None]:
    try:
        yield
    except apsw.FullError as error:
        raise MetadataFull(
            f"{where}: no room left for metadata ({error})", help="Free space on the disk that holds the metadata file."
        ) from error
    except apsw.BusyError as error:
        raise MetadataBusy(
            f"{where}: another process holds the metadata file ({error})",
            help="Only one control plane may use a metadata file.",
        ) from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise MetadataDamaged(f"{where}: the metadata file is damaged ({error})") from error
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError) as error:
        raise InvalidSetting(
            f"{where}: the metadata file cannot be opened for writing ({error})",
            help="Check that its directory exists and may be written to.",
        ) from error
    except apsw.ConstraintError as error:
        raise MetadataConflict(f"{where}: {error}") from error
    except apsw.IOError as error:
        raise MetadataUnavailable(f"{where}: the disk that holds the metadata failed ({error})") from error
    except apsw.Error as error:
        raise MetadataError(f"{where}: {error}") from error


class _SqliteTransaction:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()

    def execute(self, sql: str, parameters: Sequence[Value] = ()) -> int:
        self._cursor.execute(sql, tuple(parameters))
        return int(self._connection.changes())

    def executemany(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        self._cursor.executemany(sql, rows)

    def query(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        return self._cursor.execute(sql, tuple(parameters)).fetchall()


class SqliteMetadata:
    """A file (or, with an empty path, memory). Writes, reads and checkpoints have a connection and a thread each."""

    def __init__(self, path: str, writer: apsw.Connection, reader: apsw.Connection, write_in: Executor) -> None:
        self.path = path
        self._wal_pages = 0
        self._wal_pages_copied = 0
        self._checkpointing: asyncio.Future[None] | None = None
        self._checkpoint_in = ThreadPoolExecutor(1, thread_name_prefix="metadata-checkpoint")
        self._checkpointer: apsw.Connection | None = None
        writer.set_wal_hook(self._wal_grew)
        self._writer = writer
        self._reader = reader
        self._write_in = write_in
        # One connection cannot serve two threads at a time, and a database in memory has only one.
        self._read_in = write_in if reader is writer else ThreadPoolExecutor(1, thread_name_prefix="metadata-read")
        self._epoch = 0

    @classmethod
    async def open(cls, path: str) -> "SqliteMetadata":
        write_in = ThreadPoolExecutor(1, thread_name_prefix="metadata-write")
        try:
            writer, reader = await asyncio.get_running_loop().run_in_executor(write_in, _open_connections, path)
        except BaseException:
            write_in.shutdown(wait=False)
            raise
        return cls(path, writer, reader, write_in)

    @property
    def fencing_epoch(self) -> int:
        return self._epoch

    async def acquire_fencing_epoch(self) -> int:
        def acquire(tx: _SqliteTransaction) -> int:
            tx.execute("UPDATE fencing SET epoch = epoch + 1")
            return int(tx.query("SELECT epoch FROM fencing")[0][0])

        self._epoch = await self._run(self._write_in, self._transact, acquire, False)
        return self._epoch

    async def transact(self, fn: Callable[[_SqliteTransaction], T]) -> T:
        result: T = await self._run(self._write_in, self._transact, fn, True)
        if self._checkpointing is None and self._wal_pages - self._wal_pages_copied >= WAL_PAGES_BEFORE_CHECKPOINT:
            self._checkpointing = asyncio.ensure_future(self._run(self._checkpoint_in, self._checkpoint))
            self._checkpointing.add_done_callback(self._checkpointed)
        return result

    async def read(self, fn: Callable[[_SqliteTransaction], T]) -> T:
        return await self._run(self._read_in, self._read, fn)

    async def _run(self, executor: Executor, fn: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, fn, *arguments)

    def _wal_grew(self, connection: apsw.Connection, name: str, pages: int) -> int:
        """Called by SQLite in the writing thread, after each commit."""
        if pages < self._wal_pages:
            self._wal_pages_copied = 0
        self._wal_pages = pages
        if pages >= WAL_PAGES_MAX:
            try:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            except apsw.Error:
                # The commit is durable and must not seem to have failed, whatever keeps the log from being copied: the
                # other thread being at it, or a full disk. The next commit tries again.
                pass
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        if self._checkpointer is None:
            self._checkpointer = _connect(self.path)
        _, self._wal_pages_copied = self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _checkpointed(self, future: asyncio.Future[None]) -> None:
        self._checkpointing = None
        # A failure (a full disk) is no loss: the log is durable, and whoever writes next will meet the cause.
        if not future.cancelled() and future.exception() is not None:
            self._wal_pages_copied = self._wal_pages

    def _transact(self, fn: Callable[[_SqliteTransaction], T], fenced: bool) -> T:
        with _typed_errors(self.path or "memory"):
            return self._in_transaction(self._writer, "BEGIN IMMEDIATE", fn, fenced)

    def _read(self, fn: Callable[[_SqliteTransaction], T]) -> T:
        with _typed_errors(self.path or "memory"):
            return self._in_transaction(self._reader, "BEGIN", fn, True)

    def _in_transaction(
        self, connection: apsw.Connection, begin: str, fn: Callable[[_SqliteTransaction], T], fenced: bool
    ) -> T:
        connection.execute(begin)
        try:
            transaction = _SqliteTransaction(connection)
            if fenced:
                self._check_fence(transaction)
            result = fn(transaction)
            connection.execute("COMMIT")
            return result
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _check_fence(self, transaction: _SqliteTransaction) -> None:
        newest = transaction.query("SELECT epoch FROM fencing")[0][0]
        if newest != self._epoch or self._epoch == 0:
            raise Fenced(
                f"this control plane holds fencing epoch {self._epoch}, the newest is {newest}",
                help="Another control plane has taken over the metadata. Stop this one.",
            )

    async def close(self) -> None:
        # The writer last: the last connection to go checkpoints the log into the file.
        if self._checkpointing is not None:
            await asyncio.wait([self._checkpointing])
        if self._checkpointer is not None:
            await self._run(self._checkpoint_in, self._checkpointer.close)
        self._checkpoint_in.shutdown(wait=False)
        if self._reader is not self._writer:
            await self._run(self._read_in, self._reader.close)
            self._read_in.shutdown(wait=False)
        await self._run(self._write_in, self._writer.close)
        self._write_in.shutdown(wait=False)


def _open_connections(path: str) -> tuple[apsw.Connection, apsw.Connection]:
    with _typed_errors(path or "memory"):
        writer = _connect(path)
        try:
            _migrate(writer)
            return writer, (_connect(path) if path else writer)
        except BaseException:
            writer.close()
            raise


def _connect(path: str) -> apsw.Connection:
    connection = apsw.Connection(path or ":memory:")
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        "wal_autocheckpoint = 0",
        f"cache_size = -{CACHE_KIB}",
    ):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _migrate(connection: apsw.Connection) -> None:
    migrations = load_migrations()
    newest_known = migrations[-1][0]
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
        row = connection.execute("SELECT MAX(version) FROM schema_version").fetchall()[0][0]
        current = int(row) if row is not None else 0
        if current > newest_known:
            raise SchemaTooNew(
                f"the metadata has schema {current}, this release knows {newest_known}",
                help="Run the release that wrote it, or a newer one.",
            )
        for version, sql in migrations:
            if version > current:
                connection.execute(_translate(sql))
                connection.execute("INSERT INTO schema_version VALUES (?)", (version,))
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _translate(sql: str) -> str:
    for portable, ours in _DIALECT:
        sql = re.sub(rf"\b{portable}\b", ours, sql)
    return _HINT.sub(r"\1", sql)
