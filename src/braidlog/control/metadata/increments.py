"""Increments of the copy: recorded transactions as objects. Pure.

A copy of `sqlite` or `postgresql` metadata flows to the bucket: snapshots, and increments behind them. An increment has
the statements of consecutive transactions. They are plain SQL that both databases run, so SQLite can replay either.
Persisted: keep it stable.

`copy/<restore>/increment/<n>`
    Increment `n` of the metadata that restore number `restore` made; 0 if there was none.

`copy/<restore>/snapshot/<n>`
    The whole metadata, before increment `n` or somewhere within it. The file itself says at which position.

`restores/<n>`
    Restore number `n`. Creating it fences all metadata that earlier restores made. Never deleted.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from braidlog.control.metadata.store import MetadataDamaged, Row, SchemaTooNew, Transaction, Value

COPY_PREFIX = "copy/"
RESTORES_PREFIX = "restores/"
_MAGIC = b"BLINCR"
_FORMAT_VERSION = 1
_HEAD_BYTES = len(_MAGIC) + 1 + 4
_COMPRESSION_LEVEL = 1
_DIGITS = 20

Statement: TypeAlias = tuple[str, list[tuple[Any, ...]]]
"""SQL, and the parameters of each time it ran."""

WAITS_FOR_COPY = (
    "INSERT INTO topics",
    "UPDATE topics",
    "DELETE FROM topics",
    "INSERT INTO partitions",
    "UPDATE partitions SET removed_ms",
    "UPDATE partitions SET log_start_offset",
    "DELETE FROM transaction_partitions",
)
"""What the footers of objects cannot give back: topics, deletions and the ends of transactions. It is in the bucket
before anybody is told of it."""
_COUNTERS = "INSERT INTO counters"
_PRODUCER_IDS = "producer_id"


class Increment(msgspec.Struct, frozen=True, array_like=True):
    """One increment.

    Persisted as a msgpack array of these fields: add new ones at the end, with a default.
    """

    first_position: int
    """The position of its first transaction. The others follow without a gap."""
    schema_version: int
    created_ms: int
    nonce: bytes
    transactions: list[list[Statement]]

    @property
    def end_position(self) -> int:
        return self.first_position + len(self.transactions)


def increment_key(restore: int, number: int) -> str:
    return f"{increments_prefix(restore)}{number:0{_DIGITS}d}"


def increments_prefix(restore: int) -> str:
    return f"{COPY_PREFIX}{restore:010d}/increment/"


def snapshots_prefix(restore: int) -> str:
    return f"{COPY_PREFIX}{restore:010d}/snapshot/"


def copy_snapshot_key(restore: int, number: int) -> str:
    return f"{snapshots_prefix(restore)}{number:0{_DIGITS}d}"


def restore_key(restore: int) -> str:
    return f"{RESTORES_PREFIX}{restore:010d}"


def encode_increment(increment: Increment) -> bytes:
    """Encode an increment: magic, version, CRC-32, compressed msgpack."""
    body = zlib.compress(msgspec.msgpack.encode(increment), _COMPRESSION_LEVEL)
    return _MAGIC + bytes([_FORMAT_VERSION]) + zlib.crc32(body).to_bytes(4, "big") + body


def decode_increment(data: bytes | bytearray | memoryview, key: str) -> Increment:
    data = bytes(data)
    if len(data) < _HEAD_BYTES or not data.startswith(_MAGIC):
        raise MetadataDamaged(f"{key} is not an increment of the metadata")
    if data[len(_MAGIC)] > _FORMAT_VERSION:
        raise SchemaTooNew(f"{key} has a newer format", help="Run the release that wrote it, or a newer one.")
    body = data[_HEAD_BYTES:]
    if zlib.crc32(body).to_bytes(4, "big") != data[_HEAD_BYTES - 4 : _HEAD_BYTES]:
        raise MetadataDamaged(f"{key} is damaged: its checksum does not match")
    try:
        return msgspec.msgpack.decode(zlib.decompress(body), type=Increment)
    except (msgspec.MsgspecError, zlib.error) as error:
        raise MetadataDamaged(f"{key} cannot be read ({error})") from error


class RecordingTransaction:
    """Runs statements, and notes those that changed something."""

    def __init__(self, inner: Transaction) -> None:
        self._inner = inner
        self.statements: list[Statement] = []

    def execute(self, sql: str, parameters: Sequence[Value] = ()) -> int:
        changed = self._inner.execute(sql, parameters)
        if changed:
            self.statements.append((sql, [tuple(parameters)]))
        return changed

    def executemany(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        given = [tuple(row) for row in rows]
        if given:
            self._inner.executemany(sql, given)
            self.statements.append((sql, given))

    def query(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        return self._inner.query(sql, parameters)


def must_be_copied(statements: Iterable[Statement]) -> bool:
    """Whether somebody may be told of these only when they are in the bucket."""
    return any(
        sql.startswith(WAITS_FOR_COPY) or (sql.startswith(_COUNTERS) and any(row[0] == _PRODUCER_IDS for row in rows))
        for sql, rows in statements
    )


def replay(transaction: Transaction, statements: Iterable[Statement]) -> None:
    """Run recorded statements again."""
    for sql, rows in statements:
        transaction.executemany(sql, rows)


def read_position(transaction: Transaction) -> int:
    return int(transaction.query("SELECT position FROM copy_position")[0][0])


def count_transaction(transaction: Transaction) -> int:
    """Count a recorded transaction, within it, and return its position."""
    transaction.execute("UPDATE copy_position SET position = position + 1")
    return read_position(transaction)
