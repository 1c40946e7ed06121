"""The metadata in PostgreSQL, or in a database that speaks its protocol.

Every transaction updates the fence row if it still has this holder's epoch, and so locks it. A process that takes over
updates it as well, and so waits until older transactions are over. The row also counts the holder's transactions.

Transactions are committed without waiting for the disk. A second connection then commits with waiting, which makes all
before it durable, and many at once. When a connection is lost, the server may have lost those that were not durable
yet. The fence row says which, and they are run again from what was remembered of them.

The holder keeps an advisory lock, which ends with its connection, and counts its heartbeats in a row. From these,
standbys see that the holder is gone or hangs.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import psycopg
import structlog

from braidlog.control.metadata.postgres_connection import Link, PostgresTransaction, typed_errors
from braidlog.control.metadata.progress import Progress
from braidlog.control.metadata.store import (
    FOLLOW_INTERVAL_S,
    HEARTBEAT_S,
    MetadataBusy,
    MetadataError,
    MetadataUnavailable,
    Row,
    SchemaTooNew,
    Value,
    load_migrations,
)
from braidlog.control.metadata.tables import new_database, tables_of
from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import Fenced
from braidlog.runtime.tasks import TaskGroup

T = TypeVar("T")

_log = structlog.get_logger(__name__)

CALLS_AHEAD_MAX = 100
"""How many transactions may be committed before they are durable. Further ones wait."""
AGAIN_S = 0.2
"""How long to wait before a server that failed is tried again."""
ASKS_MAX = 300
"""How many times to ask for the outcome of a commit whose connection was lost: for at least a minute."""
_DUMP_ROWS = 10_000
_MIGRATION_LOCK, _HOLDER_LOCK = 0x62726D69, 0x62726864
"""Advisory locks: one while the schema changes, and one for the process that holds the metadata."""
_FLUSH = "BEGIN; SELECT epoch, committed FROM fencing; UPDATE holder SET beats = beats + 1; COMMIT"
_UNKNOWN_COMMIT = "Nobody knows whether the last transaction was kept. Is the server reachable?"
_OTHER_SERVER = "Name all servers in metadata_url."


@dataclass(slots=True)
class _Committed:
    """A transaction that was committed, and may not be durable yet."""

    number: int
    statements: list[tuple[str, list[tuple[Value, ...]]]]
    is_kept: bool | None = True
    """Whether the server has kept it; None: the connection was lost before it said so."""


class PostgresMetadata:
    """Implements `MetadataStore`.

    Writing, making durable and reading have a connection and a thread each.
    """

    def __init__(self, url: str, clock: Clock, holder: str) -> None:
        self._url = url
        self._clock = clock
        self._holder = holder
        self._tasks = TaskGroup("metadata")
        self._writer = Link(url, "writer", "-c synchronous_commit=off")
        self._flusher = Link(url, "flusher", "-c synchronous_commit=on")
        self._reader = Link(url, "reader")
        self._write_in = ThreadPoolExecutor(1, thread_name_prefix="metadata-write")
        self._flush_in = ThreadPoolExecutor(1, thread_name_prefix="metadata-flush")
        self._read_in = ThreadPoolExecutor(1, thread_name_prefix="metadata-read")
        self._epoch = 0
        self._executed = 0
        """How many transactions of this holder were committed. Only the writing thread touches it."""
        self._undurable: deque[_Committed] = deque()
        self._is_suspect = False
        """Whether the server may have lost transactions: a connection to it broke."""
        self._planning = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._ended: Fenced | None = None
        self.progress = Progress()
        self.lost = asyncio.Event()

    @classmethod
    async def open(cls, url: str, clock: Clock, *, holder: str) -> "PostgresMetadata":
        """Connect, and create the schema of an empty database.

        `holder` names this process to people. An older schema is brought up to date by whoever takes over: another
        holder may still use it.
        """
        metadata = cls(url, clock, holder)
        try:
            await metadata._run(metadata._write_in, metadata._check_schema)
        except BaseException:
            await metadata.close()
            raise
        return metadata

    @property
    def fencing_epoch(self) -> int:
        return self._epoch

    def _check_schema(self) -> None:
        with typed_errors():
            cursor = self._writer.cursor()
            with cursor.connection.transaction():
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
                cursor.execute("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")
                if _schema_version(cursor) == 0:
                    _migrate(cursor)

    # ── holding ──

    async def wait_vacant(self, *, patient: bool, silent_s: float) -> None:
        """Return when the holder's connection has ended, or the holder is silent.

        If somebody holds the metadata, raise `MetadataBusy`, or with `patient` wait until nobody does.
        """
        quiet_since_s = self._clock.boot_s()
        seen: Row | None = None
        while not await self._run(self._write_in, self._try_hold):
            found = await self._run(self._read_in, self._find_holder)
            if found is None or seen is None:
                quiet_since_s = self._clock.boot_s()  # nobody can tell whether the holder is alive
            elif found != seen:
                if not patient:
                    raise MetadataBusy(
                        f"the metadata is in use by {found[0]}",
                        help="Stop that process, end it from here with --take-over, or wait for it with --standby.",
                    )
                quiet_since_s = self._clock.boot_s()
            elif self._clock.boot_s() - quiet_since_s >= silent_s:
                _log.warning("the holder of the metadata is silent", holder=found[0])
                return
            seen = found
            await self._clock.sleep(FOLLOW_INTERVAL_S)

    def _try_hold(self) -> bool:
        """Try to take the holder's lock, which ends with its connection."""
        try:
            with typed_errors():
                row = self._writer.cursor().execute("SELECT pg_try_advisory_lock(%s)", (_HOLDER_LOCK,)).fetchone()
        except MetadataError as error:
            self._is_suspect = True
            _log.warning("the metadata cannot be reached", error=str(error), help=error.help)
            return False
        return row is not None and bool(row[0])

    def _find_holder(self) -> Row | None:
        try:
            with typed_errors():
                return self._reader.cursor().execute("SELECT holder_name, beats FROM holder").fetchone()
        except MetadataError:
            return None

    async def acquire_fencing_epoch(self) -> int:
        self._epoch = await self._run(self._write_in, self._acquire)
        self._tasks.spawn(self._flush_planned())
        self._tasks.spawn(self._beat())
        return self._epoch

    def _acquire(self) -> int:
        """Take the fence row from the last holder, and bring the schema up to date."""
        with typed_errors():
            cursor = self._writer.cursor()
            try:
                with cursor.connection.transaction():
                    cursor.execute("SET LOCAL synchronous_commit = on")
                    cursor.execute("UPDATE fencing SET epoch = epoch + 1")
                    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
                    _migrate(cursor)
                    cursor.execute("UPDATE fencing SET committed = 0")
                    cursor.execute("UPDATE holder SET holder_name = %s, beats = beats + 1", (self._holder,))
                    return int(cursor.execute("SELECT epoch FROM fencing").fetchall()[0][0])
            except BaseException:
                self._writer.abandon()
                raise

    async def _beat(self) -> None:
        """Show now and then that the holder is alive.

        It also takes the lock again if a lost connection has released it.
        """
        while self._ended is None:
            await self._run(self._write_in, self._try_hold)
            await self._clock.sleep(HEARTBEAT_S)
            self._wanted.set()

    def _end(self, error: Fenced) -> Fenced:
        """Refuse all further calls with this error."""
        self._ended = self._ended or error
        self.progress.end(self._ended)
        self._wanted.set()
        self.lost.set()
        return self._ended

    # ── transactions ──

    async def plan(self, fn: Callable[[PostgresTransaction], T]) -> T:
        self._check_holds()
        while self.progress.ahead >= CALLS_AHEAD_MAX:
            await self.progress.moved()
            self._check_holds()
            if (failure := self.progress.failure) is not None:
                raise MetadataError(str(failure), help="Nothing of this call was kept. Is the server reachable?")
        # Callers go on in the order of their commits, even if the outcome of one is not known for a while.
        async with self._planning:
            try:
                run: tuple[T, _Committed] = await self._run(self._write_in, self._execute, fn)
                result, committed = run
                await self._settle(committed)
            except Fenced as error:
                raise self._end(error) from error
            finally:
                self._wanted.set()
            self.progress.plan(committed.number)
            self.progress.retry()
            return result

    async def durable(self) -> None:
        await self.progress.wait()

    async def transact(self, fn: Callable[[PostgresTransaction], T]) -> T:
        result = await self.plan(fn)
        await self.durable()
        return result

    def _check_holds(self) -> None:
        if self._ended is not None:
            raise self._ended
        if self._epoch == 0:
            raise Fenced("this control plane does not hold the metadata", help="Acquire a fencing epoch first.")

    def _check_fence(self, newest: int) -> None:
        if newest != self._epoch or self._epoch == 0:
            raise Fenced(
                f"this control plane holds fencing epoch {self._epoch}, the newest is {newest}",
                help="Another control plane has taken over the metadata. Stop this one.",
            )

    async def _settle(self, committed: _Committed) -> None:
        """Return when the server is known to have kept a transaction, or raise."""
        for _ in range(ASKS_MAX):
            if committed.is_kept is not None:
                break
            await self._clock.sleep(AGAIN_S)
            try:
                await self._run(self._write_in, self._recover)
            except MetadataError as error:
                _log.warning("the outcome of a commit is not known yet", error=str(error), help=error.help)
        if committed.is_kept is None:
            # Others must not be planned as if it had not happened, nor as if it had.
            raise Fenced("the outcome of a commit cannot be learned", help=_UNKNOWN_COMMIT)
        if not committed.is_kept:
            raise MetadataError("the connection was lost during a commit, and nothing of it was kept")

    def _execute(self, fn: Callable[[PostgresTransaction], T]) -> tuple[T, _Committed]:
        self._recover()
        number = self._executed + 1
        transaction, result = self._begin(number, fn)
        committed = _Committed(number, transaction.statements)
        if self._commit(transaction):
            self._executed = number
        else:
            committed.is_kept = None
        self._undurable.append(committed)
        return result, committed

    def _begin(self, number: int, fn: Callable[[PostgresTransaction], T]) -> tuple[PostgresTransaction, T]:
        """Run `fn` in a transaction, which stays open."""
        try:
            with typed_errors():
                cursor = self._writer.cursor()
                # One round trip: begin, check and lock the fence row, and count. No number may be left out.
                expected = f"epoch = {self._epoch} AND committed = {number - 1}"
                cursor.execute(f"BEGIN; UPDATE fencing SET committed = {number} WHERE {expected}".encode())
                cursor.nextset()
                if cursor.rowcount != 1:
                    self._is_suspect = True
                    self._check_fence(cursor.execute("SELECT epoch FROM fencing").fetchall()[0][0])
                    raise MetadataError("the server has lost what was committed last", help=_OTHER_SERVER)
                transaction = PostgresTransaction(cursor)
                return transaction, fn(transaction)
        except BaseException:
            self._is_suspect |= not self._writer.roll_back()
            raise

    def _commit(self, transaction: PostgresTransaction) -> bool:
        """Commit the open transaction. Returns False if the connection is lost."""
        cursor = transaction.cursor
        try:
            cursor.execute("COMMIT")
        except psycopg.Error as error:
            if not cursor.connection.broken and not cursor.connection.closed:
                with typed_errors():
                    raise
            _log.warning("the connection was lost during a commit", error=str(error))
            self._writer.abandon()
            self._is_suspect = True
            return False
        return True

    def _recover(self) -> None:
        """Find out what the server has kept, if it may have lost anything.

        Whatever it has lost is run again, in the same order. Nobody was told of it, but others were planned on top.
        """
        if not self._is_suspect:
            return
        with typed_errors():
            self._writer.abandon()
            cursor = self._writer.cursor()
            # The lock waits until transactions of lost connections are over: they cannot be committed afterwards.
            cursor.execute("BEGIN; SELECT epoch, committed FROM fencing FOR UPDATE")
            cursor.nextset()
            epoch, kept = cursor.fetchall()[0]
            cursor.execute("ROLLBACK")
        self._check_fence(epoch)
        undurable = list(self._undurable)
        if kept < (undurable[0].number if undurable else self._executed + 1) - 1:
            raise Fenced("the server has lost transactions that were durable", help=_OTHER_SERVER)
        self._try_hold()
        self._is_suspect = False
        if self._undurable and self._undurable[-1].is_kept is None:
            doubtful = self._undurable[-1]
            doubtful.is_kept = doubtful.number <= kept
            if doubtful.is_kept:
                self._executed = doubtful.number
            else:
                self._undurable.pop()
        for committed in list(self._undurable):
            if committed.number > kept:
                _log.warning("the server has lost a transaction, running it again", number=committed.number)
                self._repeat(committed)

    def _repeat(self, committed: _Committed) -> None:
        def run(transaction: PostgresTransaction) -> None:
            for sql, rows in committed.statements:
                transaction.executemany(sql, rows)

        try:
            transaction, _ = self._begin(committed.number, run)
        except MetadataError as error:
            if self._is_suspect:
                raise
            raise Fenced(f"what the server has lost cannot be run again ({error})", help="Start again.") from error
        if not self._commit(transaction):
            raise MetadataError("the connection was lost again")

    async def _flush_planned(self) -> None:
        """Make what was committed durable, again and again."""
        failures = 0
        while await self._wanted.wait() and self._ended is None:
            self._wanted.clear()
            planned = self.progress.planned
            try:
                if self._is_suspect:
                    await self._run(self._write_in, self._recover)
                durable = await self._run(self._flush_in, self._flush)
                if durable < planned:
                    raise MetadataError("the server does not have what was committed", help=_OTHER_SERVER)
            except Fenced as error:
                self._end(error)
                return
            except MetadataError as error:
                _log.warning("the metadata cannot be stored, trying again", error=str(error), help=error.help)
                self._is_suspect = True
                self._wanted.set()
                failures += 1
                if failures > 1:  # the first time, it may just be a connection that had ended long ago
                    message = f"the metadata cannot be stored now ({error})"
                    self.progress.fail(MetadataUnavailable(message, help=error.help))
                    await self._clock.sleep(AGAIN_S)
                continue
            failures = 0
            while self._undurable and self._undurable[0].number <= durable and self._undurable[0].is_kept:
                self._undurable.popleft()
            self.progress.reach(durable)

    def _flush(self) -> int:
        """Make everything durable that is committed. Returns how many transactions it is."""
        try:
            with typed_errors():
                cursor = self._flusher.cursor()
                cursor.execute(_FLUSH)
                cursor.nextset()
                epoch, committed = cursor.fetchall()[0]
        except BaseException:
            self._flusher.abandon()
            raise
        self._check_fence(epoch)
        return int(committed)

    # ── reading ──

    async def read(self, fn: Callable[[PostgresTransaction], T]) -> T:
        self._check_holds()
        try:
            return await self._run(self._read_in, self._read, fn, self.progress.planned)
        except Fenced as error:
            raise (self._end(error) if self._epoch else error) from error

    async def peek(self, fn: Callable[[PostgresTransaction], T]) -> T:
        return await self._run(self._read_in, self._read, fn, None)

    def _read(self, fn: Callable[[PostgresTransaction], T], planned: int | None) -> T:
        """Read what the holder has committed; without `planned`, whatever there is."""
        with typed_errors():
            cursor = self._reader.cursor()
            try:
                cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT pg_is_in_recovery()")
                cursor.nextset()
                if cursor.fetchall()[0][0]:
                    raise MetadataError("this server is no primary any more", help=_OTHER_SERVER)
                if planned is not None:
                    epoch, committed = cursor.execute("SELECT epoch, committed FROM fencing").fetchall()[0]
                    self._check_fence(epoch)
                    if committed < planned:
                        self._is_suspect = True
                        raise MetadataError("the server has lost what was committed last", help=_OTHER_SERVER)
                return fn(PostgresTransaction(cursor))
            finally:
                self._reader.roll_back()

    async def dump(self) -> bytes:
        return await asyncio.to_thread(self._dump)

    def _dump(self) -> bytes:
        link = Link(self._url, "copy")
        target = new_database()
        try:
            with typed_errors():
                cursor = link.cursor()
                cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                for table in tables_of(target):
                    cursor.execute(table.select.encode())
                    table.replace(target, iter(lambda: cursor.fetchmany(_DUMP_ROWS), []))
            return target.serialize("main")
        finally:
            link.abandon()
            target.close()

    async def close(self) -> None:
        if self._epoch and self._ended is None:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self.durable()
            except (MetadataError, Fenced, TimeoutError) as error:
                _log.warning("stopped before everything was durable", error=str(error))
        self._ended = self._ended or Fenced("this control plane has stopped")
        await self._tasks.cancel_all()
        self.progress.end(MetadataUnavailable("this control plane has stopped while it stored the metadata"))
        for executor, link in (
            (self._read_in, self._reader),
            (self._flush_in, self._flusher),
            (self._write_in, self._writer),
        ):
            await self._run(executor, link.abandon)
            executor.shutdown(wait=False)

    async def _run(self, executor: Executor, fn: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, fn, *arguments)


def _schema_version(cursor: "psycopg.Cursor[Row]") -> int:
    row = cursor.execute("SELECT MAX(version) FROM schema_version").fetchone()
    current = int(row[0] or 0) if row is not None else 0
    newest = load_migrations()[-1][0]
    if current > newest:
        raise SchemaTooNew(
            f"the metadata has schema {current}, this release knows {newest}",
            help="Run the release that wrote it, or a newer one.",
        )
    return current


def _migrate(cursor: "psycopg.Cursor[Row]") -> None:
    """Bring the schema up to date, within the open transaction."""
    current = _schema_version(cursor)
    for version, sql in load_migrations():
        if version > current:
            cursor.execute(sql.encode())
            cursor.execute("INSERT INTO schema_version VALUES (%s)", (version,))
