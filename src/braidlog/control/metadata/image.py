"""The image: a SQLite file with the state after the deltas up to some position.

It is a cache. It knows its position, it commits a transaction only when its delta is stored, and it can be made again
from a snapshot and the deltas behind it. So it need not be synced, and may be lost.
"""

import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from braidlog.control.metadata.connection import SqliteTransaction, connect, migrate_to, newest_schema, typed_errors
from braidlog.control.metadata.deltas import Delta, Position
from braidlog.control.metadata.store import MetadataDamaged, MetadataError, Row

T = TypeVar("T")

WAL_PAGES_BEFORE_CHECKPOINT = 4_000
_SNAPSHOT_MAGIC = b"BLSNAP1"
_COMPRESSION_LEVEL = 1
_UNFINISHED_SUFFIX = "-unfinished"

_CREATE_POSITION = """
CREATE TABLE IF NOT EXISTS image_position (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    number INTEGER NOT NULL,
    counted_number INTEGER NOT NULL,
    nonce BLOB NOT NULL,
    fencing_epoch INTEGER NOT NULL,
    schema_version INTEGER NOT NULL,
    holder TEXT NOT NULL,
    is_vacant INTEGER NOT NULL
)
"""
_OWN_TABLES = frozenset({"image_position", "schema_version", "fencing"})
"""Tables that no delta changes: the position is the image's own, and the others are fields of the deltas."""


class SnapshotHead(msgspec.Struct, frozen=True, array_like=True):
    """The head of a snapshot, before its compressed file.

    Persisted: add new fields at the end, with a default.
    """

    number: int
    nonce: bytes
    size_bytes: int
    checksum: int

    position: tuple[int, int, bytes, int, int, str, bool] | None = None
    """The fields of its `Position`; None: the file itself has it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What the next delta holds."""

    changes: bytes
    executed: int
    """How many calls of the holder are in it and in those before it."""
    pinned: apsw.Connection | None
    """A connection that sees the image as it is behind that delta, for a snapshot."""


def dump(pinned: apsw.Connection, position: Position) -> bytes:
    """Return a snapshot of what the connection sees, and close it.

    `position` is that of the delta that led there.
    """
    with typed_errors("the image of the metadata"):
        try:
            content = pinned.serialize("main")
        finally:
            pinned.close()
    return encode_snapshot(position.counted_number, position.nonce, content, position)


class Image:
    """One image file, with a connection that writes and one that reads.

    Every method blocks: call it in a thread.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with typed_errors(str(path)):
            self._writer = connect(str(path), durable=False)
            self._writer.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES_BEFORE_CHECKPOINT}")
            self._reader = connect(str(path), durable=False)
        self._session: apsw.Session | None = None
        self._executed = 0
        """How many calls of the holder have run."""
        self._is_ahead = False
        """Whether some of them may not be in the log yet."""

    @property
    def position(self) -> Position:
        """The position of the image; 0 if the file is new, or not an image."""
        with typed_errors(str(self.path)):
            self._writer.execute(_CREATE_POSITION)
            rows: list[Row] = self._writer.execute("SELECT * FROM image_position").fetchall()
        if not rows:
            return Position()
        _, number, counted_number, nonce, fencing_epoch, schema_version, holder, is_vacant = rows[0]
        return Position(number, counted_number, nonce, fencing_epoch, schema_version, holder, bool(is_vacant))

    @property
    def is_metadata_itself(self) -> bool:
        """Whether the file is not an image, but the metadata of a control plane.

        Such a file must never be removed.
        """
        with typed_errors(str(self.path)):
            if not self._writer.execute("SELECT 1 FROM sqlite_schema WHERE name = 'fencing'").fetchall():
                return False
            return any(epoch for (epoch,) in self._writer.execute("SELECT epoch FROM fencing").fetchall())

    def prepare_empty(self) -> None:
        """Create the tables in the image of an empty log, so that it can be queried."""
        with typed_errors(str(self.path)), self._transaction():
            migrate_to(self._writer, newest_schema())

    # ── following the deltas ──

    def apply(self, deltas: Sequence[tuple[Delta, Position]]) -> None:
        """Apply deltas that count, in order, in one transaction.

        Each comes with the position behind it.
        """
        with typed_errors(str(self.path)), self._transaction():
            for delta, position in deltas:
                migrate_to(self._writer, delta.schema_version)
                if delta.changes:
                    self._apply_changes(delta)
                self._write_position(position)

    def _apply_changes(self, delta: Delta) -> None:
        try:
            apsw.Changeset.apply(delta.changes, self._writer, conflict=_refuse)
        except apsw.Error as error:
            raise MetadataDamaged(
                f"delta {delta.number} does not fit the image at {self.path} ({error})",
                help="Remove the image: it is made again from the store.",
            ) from error

    # ── transactions of the holder ──

    def execute(self, call: Callable[[SqliteTransaction], T]) -> tuple[T, int]:
        """Run a call in a transaction of its own; return its result and its number.

        The image is ahead of the log from now on. It has no position then, so that a process that finds it after a
        crash makes it again. If the call raises, nothing of it is kept.
        """
        with typed_errors(str(self.path)):
            self._record()
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                if not self._is_ahead:
                    self._writer.execute("DELETE FROM image_position")
                result = call(SqliteTransaction(self._writer))
                self._writer.execute("COMMIT")
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
            self._is_ahead = True
            self._executed += 1
            return result, self._executed

    def _record(self) -> None:
        """Begin to record what the next delta changes."""
        if self._session is None:
            self._session = apsw.Session(self._writer, "main")
            self._session.table_filter(lambda name: name not in _OWN_TABLES)
            self._session.attach()

    def cut(self, pins: bool) -> Cut:
        """Return the changes of the transactions since the last cut."""
        with typed_errors(str(self.path)):
            changes = self._session.changeset() if self._session is not None else b""
            self._end_session()
            return Cut(changes, self._executed, self._pin() if pins else None)

    def _pin(self) -> apsw.Connection:
        """Open a connection that goes on seeing the image as it is now."""
        connection = connect(str(self.path), durable=False)
        connection.execute("BEGIN")
        connection.execute("SELECT COUNT(*) FROM image_position").fetchall()
        return connection

    def stamp(self, position: Position, schema_version: int, executed: int | None = None) -> None:
        """Write the position of the image, unless more than `executed` calls have run."""
        if executed is not None and executed != self._executed:
            return
        with typed_errors(str(self.path)), self._transaction():
            migrate_to(self._writer, schema_version)
            self._write_position(position)
        self._is_ahead = False

    def rollback(self) -> None:
        """End the transaction that failed."""
        self._end_session()
        if self._writer.in_transaction:
            with typed_errors(str(self.path)):
                self._writer.execute("ROLLBACK")

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _write_position(self, position: Position) -> None:
        self._writer.execute(_CREATE_POSITION)
        self._writer.execute("INSERT OR REPLACE INTO image_position VALUES (1, ?, ?, ?, ?, ?, ?, ?)", astuple(position))

    def _transaction(self) -> "_Transaction":
        return _Transaction(self)

    def begin(self) -> None:
        self._writer.execute("BEGIN IMMEDIATE")

    def finish(self) -> None:
        self._writer.execute("COMMIT")

    # ── reading ──

    def read(self, call: Callable[[SqliteTransaction], T]) -> T:
        """Run `call` over committed data, on the connection for reads."""
        with typed_errors(str(self.path)):
            self._reader.execute("BEGIN")
            try:
                return call(SqliteTransaction(self._reader))
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("ROLLBACK")

    def export(self) -> bytes:
        """Return a snapshot of an image that is not ahead of the log."""
        with typed_errors(str(self.path)):
            connection = connect(str(self.path), durable=False)
            try:
                connection.execute("BEGIN")
                rows: list[Row] = connection.execute("SELECT counted_number, nonce FROM image_position").fetchall()
                content = connection.serialize("main")
            finally:
                connection.close()
        number, nonce = rows[0]
        return encode_snapshot(number, nonce, content)

    def close(self) -> None:
        self.rollback()
        self._reader.close()
        self._writer.close()


class _Transaction:
    """A write transaction for a `with` block: rolled back if the block raises."""

    def __init__(self, image: Image) -> None:
        self._image = image

    def __enter__(self) -> None:
        self._image.begin()

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self._image.finish()
        else:
            self._image.rollback()


def _refuse(_reason: int, _change: object) -> int:
    """Abort if a change does not fit.

    The image is not at the position that it names then, and nothing of it may be used.
    """
    return int(apsw.SQLITE_CHANGESET_ABORT)


def encode_snapshot(number: int, nonce: bytes, content: bytes, position: Position | None = None) -> bytes:
    """Encode a SQLite file as a snapshot.

    Without a `position`, the file itself may have one.
    """
    fields = astuple(position) if position is not None else None
    head = msgspec.msgpack.encode(SnapshotHead(number, nonce, len(content), zlib.crc32(content), fields))
    return _SNAPSHOT_MAGIC + len(head).to_bytes(4, "big") + head + zlib.compress(content, _COMPRESSION_LEVEL)


def load_snapshot(data: bytes | bytearray | memoryview, path: Path) -> None:
    """Write a snapshot's file to `path`, or raise `MetadataDamaged`."""
    data = bytes(data)
    head_start = len(_SNAPSHOT_MAGIC) + 4
    head_end = head_start + int.from_bytes(data[len(_SNAPSHOT_MAGIC) : head_start], "big")
    if not data.startswith(_SNAPSHOT_MAGIC) or len(data) < head_end:
        raise MetadataDamaged("not a snapshot of the metadata")
    try:
        head = msgspec.msgpack.decode(data[head_start:head_end], type=SnapshotHead)
        content = zlib.decompress(data[head_end:])
    except (msgspec.MsgspecError, zlib.error) as error:
        raise MetadataDamaged(f"a snapshot of the metadata cannot be read ({error})") from error
    if len(content) != head.size_bytes or zlib.crc32(content) != head.checksum:
        raise MetadataDamaged("a snapshot of the metadata is damaged: its checksum does not match")
    unfinished = path.with_name(path.name + _UNFINISHED_SUFFIX)
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            os.fsync(file.fileno())  # otherwise a crash of the machine might leave a file with holes
        if head.position is not None:
            _stamp_file(unfinished, Position(*head.position))
        remove_image(path)
        unfinished.rename(path)
    except OSError as error:
        raise MetadataError(f"{path}: the image of the metadata cannot be written ({error})") from error


def _stamp_file(path: Path, position: Position) -> None:
    image = Image(path)
    try:
        image.stamp(position, position.schema_version)
    finally:
        image.close()


def remove_image(path: Path) -> None:
    """Remove those files of an image that exist."""
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()
