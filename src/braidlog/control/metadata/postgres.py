"""The metadata in PostgreSQL, or in a database that speaks its protocol.

Every transaction takes a shared lock on the fence row and checks the epoch in it. A process that takes over updates the
row, and so waits until older transactions are over. When a connection is lost during a commit, this module asks the
server for the outcome. The holder keeps an advisory lock, which ends with its connection, and counts its heartbeats in
a row. From these, standbys see that the holder is gone or hangs.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

import structlog

from braidlog.control.metadata.store import (
    FOLLOW_INTERVAL_S,
    HEARTBEAT_S,
    MetadataBusy,
    MetadataConflict,
    MetadataError,
    MetadataFull,
    MetadataUnavailable,
    Row,
    SchemaTooNew,
    Value,
    load_migrations,
)
from braidlog.control.metadata.tables import new_database, tables_of
from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import Fenced, InvalidSetting
from braidlog.runtime.tasks import TaskGroup

try:
    import psycopg
    from psycopg.types.numeric import Int8Dumper
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise InvalidSetting(
        "metadata in PostgreSQL needs the package psycopg", help="pip install 'braidlog[postgresql]'"
    ) from error

T = TypeVar("T")

_log = structlog.get_logger(__name__)

ASK_INTERVAL_S = 0.2
_DUMP_ROWS = 10_000
ASKS_MAX = 300
"""How many times to ask for the outcome of a commit whose connection was lost: for at least a minute."""
_BEGIN = "BEGIN; SELECT epoch, pg_current_xact_id()::text FROM fencing"
_BEGIN_FENCED = f"{_BEGIN} FOR SHARE"
_MIGRATION_LOCK, _HOLDER_LOCK = 0x62726D69, 0x62726864
"""Advisory locks: one while the schema changes, and one for the process that holds the metadata."""
_SESSION = (
    # A holder that is paused within a transaction must not keep its successor from the fence row.
    "-c idle_in_transaction_session_timeout=10s -c lock_timeout=30s "
    # The machine of a holder may vanish without closing its connections.
    "-c tcp_keepalives_idle=3 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=4"
)
_UNKNOWN_COMMIT = "Nobody knows whether the last transaction was kept. Is the server reachable?"


class _BoolAsNumber(Int8Dumper):
    """Writes booleans as 0 and 1, because SQLite has no booleans."""

    def dump(self, obj: int) -> bytes | bytearray | memoryview | None:
        return super().dump(int(obj))


@lru_cache(maxsize=1_000)
def _translate(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


@contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.DiskFull as error:
        raise MetadataFull(f"no room left for metadata ({error})", help="Free space on PostgreSQL's disk.") from error
    except (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable) as error:
        raise MetadataBusy(f"another transaction held the metadata for too long ({error})") from error
    except psycopg.IntegrityError as error:
        raise MetadataConflict(str(error)) from error
    except psycopg.errors.ReadOnlySqlTransaction as error:
        raise MetadataError("this server is no primary any more", help="Name all servers in metadata_url.") from error
    except psycopg.Error as error:
        raise MetadataError(f"PostgreSQL failed ({error})", help="Is the server reachable, and healthy?") from error


class _PostgresTransaction:
    def __init__(self, cursor: "psycopg.Cursor[Row]") -> None:
        self._cursor = cursor

    def execute(self, sql: str, parameters: Sequence[Value] = ()) -> int:
        self._cursor.execute(_translate(sql), tuple(parameters))
        return self._cursor.rowcount

    def executemany(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        self._cursor.executemany(_translate(sql), [tuple(row) for row in rows])

    def query(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        return self._cursor.execute(_translate(sql), tuple(parameters)).fetchall()


class _Link:
    """One connection, opened when it is first needed and again after it broke.

    Every method blocks.
    """

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._connection: psycopg.Connection[Row] | None = None

    def cursor(self) -> "psycopg.Cursor[Row]":
        if self._connection is None or self._connection.broken or self._connection.closed:
            parameters = psycopg.conninfo.conninfo_to_dict(self._url)
            parameters.setdefault("target_session_attrs", "read-write")
            parameters.setdefault("connect_timeout", "5")
            parameters["application_name"] = f"braidlog {self._name}"
            parameters["options"] = f"{_SESSION} {parameters.get('options') or ''}"
            self._connection = psycopg.connect(**parameters, autocommit=True)  # type: ignore[arg-type]
            self._connection.adapters.register_dumper(bool, _BoolAsNumber)
        return self._connection.cursor()

    def roll_back(self) -> None:
        """End the open transaction, if necessary by closing the connection."""
        try:
            if self._connection is not None and not self._connection.broken:
                self._connection.execute("ROLLBACK")
                return
        except psycopg.Error:
            pass  # closing the connection does the same
        self.abandon()

    def abandon(self) -> None:
        """Close the connection, so that the server rolls back its transaction."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PostgresMetadata:
    """Implements `MetadataStore`.

    Writing and reading have a connection and a thread each.
    """

    def __init__(self, url: str, clock: Clock, holder: str) -> None:
        self._url = url
        self._clock = clock
        self._holder = holder
        self._tasks = TaskGroup("metadata")
        self._writer = _Link(url, "writer")
        self._reader = _Link(url, "reader")
        self._write_in = ThreadPoolExecutor(1, thread_name_prefix="metadata-write")
        self._read_in = ThreadPoolExecutor(1, thread_name_prefix="metadata-read")
        self._epoch = 0
        self.lost = asyncio.Event()

    @classmethod
    async def open(cls, url: str, clock: Clock, *, holder: str) -> "PostgresMetadata":
        """Connect, and bring the schema up to date. `holder` names this process to people."""
        metadata = cls(url, clock, holder)
        try:
            await metadata._run(metadata._write_in, metadata._migrate)
        except BaseException:
            await metadata.close()
            raise
        return metadata

    @property
    def fencing_epoch(self) -> int:
        return self._epoch

    def _migrate(self) -> None:
        migrations = load_migrations()
        with _typed_errors():
            cursor = self._writer.cursor()
            with cursor.connection.transaction():
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
                cursor.execute("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")
                row = cursor.execute("SELECT MAX(version) FROM schema_version").fetchone()
                current = int(row[0] or 0) if row is not None else 0
                if current > migrations[-1][0]:
                    raise SchemaTooNew(
                        f"the metadata has schema {current}, this release knows {migrations[-1][0]}",
                        help="Run the release that wrote it, or a newer one.",
                    )
                for version, sql in migrations:
                    if version > current:
                        cursor.execute(sql.encode())
                        cursor.execute("INSERT INTO schema_version VALUES (%s)", (version,))

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
            with _typed_errors():
                row = self._writer.cursor().execute("SELECT pg_try_advisory_lock(%s)", (_HOLDER_LOCK,)).fetchone()
        except MetadataError as error:
            _log.warning("the metadata cannot be reached", error=str(error), help=error.help)
            return False
        return row is not None and bool(row[0])

    def _find_holder(self) -> Row | None:
        try:
            with _typed_errors():
                return self._reader.cursor().execute("SELECT holder_name, beats FROM holder").fetchone()
        except MetadataError:
            return None

    async def acquire_fencing_epoch(self) -> int:
        def acquire(tx: _PostgresTransaction) -> int:
            tx.execute("UPDATE fencing SET epoch = epoch + 1")
            tx.execute("UPDATE holder SET holder_name = ?, beats = beats + 1", (self._holder,))
            return int(tx.query("SELECT epoch FROM fencing")[0][0])

        self._epoch = await self._settled(acquire, fenced=False)
        self._tasks.spawn(self._beat())
        return self._epoch

    async def _beat(self) -> None:
        """Show now and then that the holder is alive.

        It also takes the lock again if a lost connection has released it.
        """
        while True:
            await self._run(self._write_in, self._try_hold)
            await self._clock.sleep(HEARTBEAT_S)
            try:
                await self.transact(lambda tx: tx.execute("UPDATE holder SET beats = beats + 1"))
            except Fenced:
                self.lost.set()
                return
            except MetadataError as error:
                _log.warning("the metadata cannot be stored", error=str(error), help=error.help)

    # ── transactions ──

    async def transact(self, fn: Callable[[_PostgresTransaction], T]) -> T:
        return await self._settled(fn, fenced=True)

    async def _settled(self, fn: Callable[[_PostgresTransaction], T], *, fenced: bool) -> T:
        """Run a transaction, and ask for its outcome if the commit loses its connection."""
        result: T
        unsettled: str | None
        result, unsettled = await self._run(self._write_in, self._transact, fn, fenced)
        for _ in range(ASKS_MAX if unsettled is not None else 0):
            status = await self._run(self._write_in, self._status, unsettled)
            if status == "committed":
                return result
            if status == "aborted":
                raise MetadataError("the connection was lost during a commit, and nothing of it was kept")
            await self._clock.sleep(ASK_INTERVAL_S)
        if unsettled is not None:
            raise MetadataUnavailable("the outcome of a commit cannot be learned", help=_UNKNOWN_COMMIT)
        return result

    def _transact(self, fn: Callable[[_PostgresTransaction], T], fenced: bool) -> tuple[T, str | None]:
        """Return the result, and the transaction's number if its outcome is unknown."""
        try:
            with _typed_errors():
                cursor = self._writer.cursor()
                # One round trip: begin, lock the fence row, and get the number with which to ask for the outcome.
                cursor.execute(_BEGIN_FENCED if fenced else _BEGIN)
                cursor.nextset()
                epoch, transaction_id = cursor.fetchall()[0]
                if fenced:
                    self._check_fence(epoch)
                result = fn(_PostgresTransaction(cursor))
        except BaseException:
            self._writer.roll_back()
            raise
        try:
            cursor.execute("COMMIT")
        except psycopg.Error as error:
            if not cursor.connection.broken:
                with _typed_errors():
                    raise
            _log.warning("the connection was lost during a commit, asking what became of it", error=str(error))
            self._writer.abandon()
            return result, str(transaction_id)
        return result, None

    def _status(self, transaction_id: str) -> str:
        try:
            row = self._writer.cursor().execute("SELECT pg_xact_status(%s::xid8)", (transaction_id,)).fetchone()
        except psycopg.errors.InvalidParameterValue:
            return "aborted"  # the server that is primary now does not know it
        except psycopg.Error as error:
            self._writer.abandon()
            return f"not known: {error}"
        return str(row[0]) if row is not None else "not known"

    def _check_fence(self, newest: int) -> None:
        if newest != self._epoch or self._epoch == 0:
            raise Fenced(
                f"this control plane holds fencing epoch {self._epoch}, the newest is {newest}",
                help="Another control plane has taken over the metadata. Stop this one.",
            )

    # ── reading ──

    async def read(self, fn: Callable[[_PostgresTransaction], T]) -> T:
        return await self._run(self._read_in, self._read, fn, True)

    async def peek(self, fn: Callable[[_PostgresTransaction], T]) -> T:
        return await self._run(self._read_in, self._read, fn, False)

    def _read(self, fn: Callable[[_PostgresTransaction], T], fenced: bool) -> T:
        with _typed_errors():
            cursor = self._reader.cursor()
            try:
                cursor.execute(
                    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT epoch, pg_is_in_recovery() FROM fencing"
                )
                cursor.nextset()
                epoch, is_standby = cursor.fetchall()[0]
                if is_standby:
                    raise MetadataError("this server is no primary any more", help="Name all servers in metadata_url.")
                if fenced:
                    self._check_fence(epoch)
                return fn(_PostgresTransaction(cursor))
            finally:
                self._reader.roll_back()

    async def dump(self) -> bytes:
        return await asyncio.to_thread(self._dump)

    def _dump(self) -> bytes:
        link = _Link(self._url, "copy")
        target = new_database()
        try:
            with _typed_errors():
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
        await self._tasks.cancel_all()
        await self._run(self._read_in, self._reader.abandon)
        await self._run(self._write_in, self._writer.abandon)
        self._read_in.shutdown(wait=False)
        self._write_in.shutdown(wait=False)

    async def _run(self, executor: Executor, fn: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, fn, *arguments)
