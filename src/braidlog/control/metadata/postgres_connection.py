"""Connections to PostgreSQL: setup, errors, and statements."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from braidlog.control.metadata.store import (
    MetadataBusy,
    MetadataConflict,
    MetadataError,
    MetadataFull,
    Row,
    Value,
)
from braidlog.runtime.errors import InvalidSetting

try:
    import psycopg
    from psycopg.types.numeric import Int8Dumper
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise InvalidSetting(
        "metadata in PostgreSQL needs the package psycopg", help="pip install 'braidlog[postgresql]'"
    ) from error

_SESSION = (
    # A holder that is paused within a transaction must not keep its successor from the fence row.
    "-c idle_in_transaction_session_timeout=10s -c lock_timeout=30s "
    # The machine of a holder may vanish without closing its connections.
    "-c tcp_keepalives_idle=3 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=4"
)
_LIVELINESS = {"keepalives_idle": "3", "keepalives_interval": "1", "keepalives_count": "4", "tcp_user_timeout": "8000"}
"""A server may vanish, too. The connection is then lost within seconds."""


class _BoolAsNumber(Int8Dumper):
    """Writes booleans as 0 and 1, because SQLite has no booleans."""

    def dump(self, obj: int) -> bytes | bytearray | memoryview | None:
        return super().dump(int(obj))


@lru_cache(maxsize=1_000)
def _translate(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


@contextmanager
def typed_errors() -> Iterator[None]:
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


class PostgresTransaction:
    """Statements of one transaction. It remembers those that change something."""

    def __init__(self, cursor: "psycopg.Cursor[Row]") -> None:
        self.cursor = cursor
        self.statements: list[tuple[str, list[tuple[Value, ...]]]] = []

    def execute(self, sql: str, parameters: Sequence[Value] = ()) -> int:
        self.statements.append((sql, [tuple(parameters)]))
        self.cursor.execute(_translate(sql), tuple(parameters))
        return self.cursor.rowcount

    def executemany(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        listed = [tuple(row) for row in rows]
        if listed:
            self.statements.append((sql, listed))
            self.cursor.executemany(_translate(sql), listed)

    def query(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        return self.cursor.execute(_translate(sql), tuple(parameters)).fetchall()


class Link:
    """One connection, opened when it is first needed and again after it broke.

    Every method blocks.
    """

    def __init__(self, url: str, name: str, options: str = "") -> None:
        self._url = url
        self._name = name
        self._options = options
        self._connection: psycopg.Connection[Row] | None = None

    def cursor(self) -> "psycopg.Cursor[Row]":
        if self._connection is None or self._connection.broken or self._connection.closed:
            parameters = psycopg.conninfo.conninfo_to_dict(self._url)
            parameters.setdefault("target_session_attrs", "read-write")
            parameters.setdefault("connect_timeout", "5")
            for name, value in _LIVELINESS.items():
                parameters.setdefault(name, value)
            parameters["application_name"] = f"braidlog {self._name}"
            parameters["options"] = f"{_SESSION} {parameters.get('options') or ''} {self._options}"
            self._connection = psycopg.connect(**parameters, autocommit=True)  # type: ignore[arg-type]
            self._connection.adapters.register_dumper(bool, _BoolAsNumber)
        return self._connection.cursor()

    def roll_back(self) -> bool:
        """End the open transaction, if necessary by closing the connection.

        Returns whether the connection lasts.
        """
        try:
            if self._connection is not None and not self._connection.broken:
                self._connection.execute("ROLLBACK")
                return True
        except psycopg.Error:
            pass  # closing the connection does the same
        self.abandon()
        return False

    def abandon(self) -> None:
        """Close the connection, so that the server rolls back its transaction."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
