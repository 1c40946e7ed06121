"""The metadata in SQLite: one writer, a write-ahead log, synced at every commit."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

import apsw

from braidlog.control.metadata.connection import SqliteTransaction, connect, migrate, typed_errors
from braidlog.control.metadata.progress import Progress
from braidlog.runtime.errors import Fenced

T = TypeVar("T")

WAL_PAGES_BEFORE_CHECKPOINT = 2_000
"""Another thread copies the write-ahead log into the file whenever it has grown by so many pages."""
WAL_PAGES_MAX = 16_000
"""At this size the writer copies the rest itself. The log can start over only while nobody writes."""


class SqliteMetadata:
    """Implements `MetadataStore` over a file, or memory if the path is empty.

    Writes, reads and checkpoints have a connection and a thread each.
    """

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
        # A connection serves one thread at a time, and a database in memory has only one connection.
        self._read_in = write_in if reader is writer else ThreadPoolExecutor(1, thread_name_prefix="metadata-read")
        self._epoch = 0
        self.progress = Progress()
        """Always complete: what runs here is synced before it is counted."""

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
        def acquire(tx: SqliteTransaction) -> int:
            tx.execute("UPDATE fencing SET epoch = epoch + 1")
            return int(tx.query("SELECT epoch FROM fencing")[0][0])

        self._epoch = await self._run(self._write_in, self._transact, acquire, False)
        return self._epoch

    async def plan(self, fn: Callable[[SqliteTransaction], T]) -> T:
        return await self.transact(fn)

    async def durable(self) -> None:
        await self.progress.wait()

    async def transact(self, fn: Callable[[SqliteTransaction], T]) -> T:
        result: T = await self._run(self._write_in, self._transact, fn, True)
        self.progress.reach(self.progress.planned + 1)
        if self._checkpointing is None and self._wal_pages - self._wal_pages_copied >= WAL_PAGES_BEFORE_CHECKPOINT:
            self._checkpointing = asyncio.ensure_future(self._run(self._checkpoint_in, self._checkpoint))
            self._checkpointing.add_done_callback(self._checkpointed)
        return result

    async def read(self, fn: Callable[[SqliteTransaction], T]) -> T:
        return await self._run(self._read_in, self._read, fn)

    async def peek(self, fn: Callable[[SqliteTransaction], T]) -> T:
        return await self._run(self._read_in, self._read, fn, False)

    async def _run(self, executor: Executor, fn: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, fn, *arguments)

    def _wal_grew(self, connection: apsw.Connection, name: str, pages: int) -> int:
        """Note the size of the log after a commit, on the writing thread."""
        if pages < self._wal_pages:
            self._wal_pages_copied = 0
        self._wal_pages = pages
        if pages >= WAL_PAGES_MAX:
            try:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            except apsw.Error:
                # The commit is durable, so it must not appear to fail. The log could not be copied because the other
                # thread is copying it, or because the disk is full. The next commit tries again.
                pass
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        if self._checkpointer is None:
            self._checkpointer = connect(self.path)
        _, self._wal_pages_copied = self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _checkpointed(self, future: asyncio.Future[None]) -> None:
        self._checkpointing = None
        # A failure, such as a full disk, loses nothing: the log is durable, and the next write meets the same cause.
        if not future.cancelled() and future.exception() is not None:
            self._wal_pages_copied = self._wal_pages

    def _transact(self, fn: Callable[[SqliteTransaction], T], fenced: bool) -> T:
        with typed_errors(self.path or "memory"):
            return self._in_transaction(self._writer, "BEGIN IMMEDIATE", fn, fenced)

    def _read(self, fn: Callable[[SqliteTransaction], T], fenced: bool = True) -> T:
        with typed_errors(self.path or "memory"):
            return self._in_transaction(self._reader, "BEGIN", fn, fenced)

    def _in_transaction(
        self, connection: apsw.Connection, begin: str, fn: Callable[[SqliteTransaction], T], fenced: bool
    ) -> T:
        connection.execute(begin)
        try:
            transaction = SqliteTransaction(connection)
            if fenced:
                self._check_fence(transaction)
            result = fn(transaction)
            connection.execute("COMMIT")
            return result
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _check_fence(self, transaction: SqliteTransaction) -> None:
        newest = transaction.query("SELECT epoch FROM fencing")[0][0]
        if newest != self._epoch or self._epoch == 0:
            raise Fenced(
                f"this control plane holds fencing epoch {self._epoch}, the newest is {newest}",
                help="Another control plane has taken over the metadata. Stop this one.",
            )

    async def dump(self) -> bytes:
        if not self.path:
            return await self._run(self._write_in, self._writer.serialize, "main")
        return await asyncio.to_thread(_dump, self.path)

    async def close(self) -> None:
        # Close the writer last: the last connection to close copies the log into the file.
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
    with typed_errors(path or "memory"):
        writer = connect(path)
        try:
            migrate(writer)
            return writer, (connect(path) if path else writer)
        except BaseException:
            writer.close()
            raise


def _dump(path: str) -> bytes:
    with typed_errors(path):
        connection = connect(path)
        try:
            connection.execute("BEGIN")
            return connection.serialize("main")
        finally:
            connection.close()
