"""Connections to SQLite files: setup, errors, and schema migrations."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import apsw

from braidlog.control.metadata.store import (
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
from braidlog.runtime.errors import InvalidSetting

BUSY_TIMEOUT_MS = 5_000
CACHE_KIB = 64 * 1024

_DIALECT = (("BIGINT", "INTEGER"), ("BYTEA", "BLOB"))
"""Types of the portable migrations, and SQLite's. Its integers have 64 bits, and only INTEGER can be a row id."""
_HINT = re.compile(r"/\* sqlite: (.*?) \*/")
"""SQL for SQLite alone, for example the clustering of a table."""


@contextmanager
def typed_errors(where: str) -> Iterator[None]:
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


class SqliteTransaction:
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


def connect(path: str, *, durable: bool = True) -> apsw.Connection:
    """Connect to a file, or to memory if the path is empty.

    Without `durable`, the newest commits may be lost with the machine. This is for files that can be made again.
    """
    connection = apsw.Connection(path or ":memory:")
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    for pragma in (
        "journal_mode = WAL",
        f"synchronous = {'FULL' if durable else 'NORMAL'}",
        "foreign_keys = ON",
        "wal_autocheckpoint = 0",
        f"cache_size = -{CACHE_KIB}",
    ):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def newest_schema() -> int:
    return load_migrations()[-1][0]


def migrate(connection: apsw.Connection) -> None:
    """Bring the schema up to date, in its own transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        migrate_to(connection, newest_schema())
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def migrate_to(connection: apsw.Connection, target: int) -> None:
    """Migrate the schema up to version `target`, within the open transaction."""
    newest_known = newest_schema()
    connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
    row = connection.execute("SELECT MAX(version) FROM schema_version").fetchall()[0][0]
    current = int(row) if row is not None else 0
    if max(current, target) > newest_known:
        raise SchemaTooNew(
            f"the metadata has schema {max(current, target)}, this release knows {newest_known}",
            help="Run the release that wrote it, or a newer one.",
        )
    for version, sql in load_migrations():
        if current < version <= target:
            connection.execute(_translate(sql))
            connection.execute("INSERT INTO schema_version VALUES (?)", (version,))


def _translate(sql: str) -> str:
    for portable, ours in _DIALECT:
        sql = re.sub(rf"\b{portable}\b", ours, sql)
    return _HINT.sub(r"\1", sql)
