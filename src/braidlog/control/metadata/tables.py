"""Whole tables of the metadata, moved from one database to another."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import apsw

from braidlog.control.metadata.connection import connect, migrate
from braidlog.control.metadata.store import Row, Transaction

ROWS_PER_STEP = 5_000
_NOT_MOVED = frozenset({"schema_version", "image_position", "fencing", "holder"})
"""Tables that belong to a database and not to what it holds."""


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: tuple[str, ...]

    @property
    def select(self) -> str:
        return f"SELECT {', '.join(self.columns)} FROM {self.name}"

    @property
    def insert(self) -> str:
        return f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES ({', '.join('?' * len(self.columns))})"

    def replace(self, target: apsw.Connection, pages: Iterable[Sequence[Row]]) -> None:
        """Replace all rows of the table in a SQLite database."""
        with target:
            target.execute(f"DELETE FROM {self.name}")
            for page in pages:
                target.executemany(self.insert, page)


def new_database(path: str = "") -> apsw.Connection:
    """Create a SQLite database with the newest schema, in memory or at a path."""
    connection = connect(path)
    migrate(connection)
    return connection


def tables_of(connection: apsw.Connection) -> list[Table]:
    """Return the tables of a SQLite database that hold the metadata."""
    names = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
    ).fetchall()
    return [
        Table(str(name), tuple(str(row[1]) for row in connection.execute(f"PRAGMA table_info({name})").fetchall()))
        for (name,) in names
        if name not in _NOT_MOVED
    ]


def pages_of(connection: apsw.Connection, table: Table) -> Iterator[list[Row]]:
    """Yield all rows of a table in steps."""
    cursor = connection.execute(table.select)
    while page := [row for _, row in zip(range(ROWS_PER_STEP), cursor, strict=False)]:
        yield page


def empty_tables(tx: Transaction, tables: Iterable[Table]) -> None:
    """Delete all rows of these tables."""
    for table in tables:
        tx.execute(f"DELETE FROM {table.name}")
