"""Deltas: the metadata's transactions as objects, and which of them count. Pure.

Delta `n` lies at `metadata/delta/<n>`. Numbers have no gaps and are never used twice, whoever writes. Creating the
first free number is at once the commit, the fence and the election. Each delta names the nonce of the one before it,
and counts only if that one is the newest that counts. So a late delta of a deposed writer is void, and everyone skips
it.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from zlib import crc32

import msgspec

from braidlog.control.metadata.store import MetadataDamaged, SchemaTooNew

NONCE_BYTES = 16
DELTA_PREFIX = "metadata/delta/"
SNAPSHOT_PREFIX = "metadata/snapshot/"
_MAGIC = b"BLDELTA"
_FORMAT_VERSION = 1
_HEAD_BYTES = len(_MAGIC) + 1 + 4

_RESTORE = "Restore the object from a copy of the bucket."


class DeltaKind(IntEnum):
    """The kinds of deltas. Persisted: keep stable."""

    TAKE_OVER = 1
    """The writer holds the metadata from here on, with the next fencing epoch and this schema."""
    CHANGES = 2
    """A group of transactions. Without changes, it only shows that the holder is alive."""
    RESIGN = 3
    """The holder has stopped: anyone may take over at once."""


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """One delta.

    Persisted as a msgpack array of these fields: add new ones at the end, with a default.
    """

    number: int
    previous: bytes
    """The nonce of the newest delta that counted when this one was written; empty in the first."""
    kind: DeltaKind
    fencing_epoch: int
    schema_version: int
    holder: str
    """The writer's name, for people."""
    changes: bytes = b""
    """A changeset of SQLite's session extension."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the log of deltas, and the state that the deltas up to it lead to."""

    number: int = 0
    """The last number that was read, whether its delta counts or not."""
    counted_number: int = 0
    """The number of the newest delta that counts; 0 if there is none."""
    nonce: bytes = b""
    fencing_epoch: int = 0
    schema_version: int = 0
    holder: str = ""
    is_vacant: bool = True
    """Whether the holder has resigned, or there never was one."""


def delta_key(number: int) -> str:
    return f"{DELTA_PREFIX}{number:020d}"


def snapshot_key(number: int) -> str:
    return f"{SNAPSHOT_PREFIX}{number:020d}"


def encode_delta(delta: Delta, nonce: bytes) -> bytes:
    """Encode a delta, with the nonce at the end.

    The order is magic, version, CRC-32, msgpack, nonce. So a store that compares only the ends of large objects still
    tells two writers apart.
    """
    body = msgspec.msgpack.encode(delta) + nonce
    return _MAGIC + bytes([_FORMAT_VERSION]) + crc32(body).to_bytes(4, "big") + body


def decode_delta(data: bytes | bytearray | memoryview, number: int) -> tuple[Delta, bytes]:
    """Return the delta and its nonce."""
    data = bytes(data)
    key = delta_key(number)
    if len(data) < _HEAD_BYTES + NONCE_BYTES or not data.startswith(_MAGIC):
        raise MetadataDamaged(f"{key} is not a delta of the metadata", help=_RESTORE)
    if data[len(_MAGIC)] > _FORMAT_VERSION:
        raise SchemaTooNew(f"{key} has a newer format", help="Run the release that wrote it, or a newer one.")
    body = data[_HEAD_BYTES:]
    if crc32(body).to_bytes(4, "big") != data[_HEAD_BYTES - 4 : _HEAD_BYTES]:
        raise MetadataDamaged(f"{key} is damaged: its checksum does not match", help=_RESTORE)
    try:
        delta = msgspec.msgpack.decode(body[:-NONCE_BYTES], type=Delta)
    except msgspec.MsgspecError as error:
        raise MetadataDamaged(f"{key} cannot be read ({error})", help=_RESTORE) from error
    if delta.number != number:
        raise MetadataDamaged(f"{key} holds delta {delta.number}: somebody has copied it", help=_RESTORE)
    return delta, body[-NONCE_BYTES:]


def counts(delta: Delta, position: Position) -> bool:
    """Whether a delta that lies right behind `position` counts."""
    if delta.previous != position.nonce:
        return False
    expected_epoch = position.fencing_epoch + (delta.kind is DeltaKind.TAKE_OVER)
    if delta.fencing_epoch != expected_epoch or delta.schema_version < position.schema_version:
        raise MetadataDamaged(
            f"{delta_key(delta.number)} has fencing epoch {delta.fencing_epoch} and schema {delta.schema_version}, "
            f"behind {position.fencing_epoch} and {position.schema_version}",
            help=_RESTORE,
        )
    return True


def behind(delta: Delta, nonce: bytes, position: Position) -> Position:
    """Return the position behind `delta`, which lies right behind `position`."""
    if not counts(delta, position):
        return replace(position, number=delta.number)
    return Position(
        number=delta.number,
        counted_number=delta.number,
        nonce=nonce,
        fencing_epoch=delta.fencing_epoch,
        schema_version=delta.schema_version,
        holder=delta.holder,
        is_vacant=delta.kind is DeltaKind.RESIGN,
    )
