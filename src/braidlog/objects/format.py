"""The bytes of an object: `extents │ footer │ trailer`. Persisted: keep it stable.

Extents lie back to back from byte 0, ordered by topic id and partition. The footer is one msgpack value, the array that
`braidlog.objects.layout.Footer` defines, and follows the last extent at once. The trailer is the last 36 bytes, with
numbers in big-endian order:

    bytes  0..16   nonce            the same 16 random bytes as in the footer
    bytes 16..20   footer length    u32, in bytes
    bytes 20..24   footer checksum  u32, CRC32C of the footer's bytes
    bytes 24..26   format version   u16, 1
    bytes 26..28   reserved         u16, 0
    bytes 28..36   magic            `BRAIDLOG` in ASCII

So an object is recognised, and its footer found, from its end alone. Extents have no checksum here: each record batch
carries its own.
"""

import struct
from dataclasses import dataclass
from typing import Any

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from braidlog.objects.layout import (
    ARROW_STREAM,
    COMPACTED,
    KAFKA_BATCHES,
    MERGED,
    NEW_RECORDS,
    ExtentEntry,
    Footer,
)
from braidlog.objects.store import Bytes, Store
from braidlog.runtime.errors import BraidError, Remedy
from braidlog.runtime.limits import (
    BATCHES_PER_OBJECT_MAX,
    FOOTER_BYTES_MAX,
    OBJECT_BYTES_MAX,
)

MAGIC = b"BRAIDLOG"
FORMAT_VERSION = 1
TRAILER = struct.Struct(">16sIIHH8s")
TRAILER_BYTES = TRAILER.size
TAIL_READ_BYTES = 64 * 1024
"""The bytes of an object's end to read first: enough for the footer of nearly every object."""

KIND_NAMES = {NEW_RECORDS: "new records", MERGED: "merged", COMPACTED: "compacted"}

_KAFKA_BATCH_BYTES_MIN = 61

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Footer)


class CorruptObject(BraidError):
    """The object's bytes are not what Braidlog writes."""

    remedy = Remedy.GIVE_UP


class TruncatedObject(CorruptObject):
    """Bytes are missing."""


class BadMagic(CorruptObject):
    """The object does not end as an object of Braidlog does."""


class UnknownVersion(CorruptObject):
    """The object was written in a format that this release does not know."""


class ChecksumMismatch(CorruptObject):
    """The footer is not what was written."""


class InvalidFooter(CorruptObject):
    """The footer contradicts itself, its object, or the limits."""


@dataclass(frozen=True, slots=True)
class Trailer:
    nonce: bytes
    footer_length: int
    footer_crc32c: int
    version: int


def encode_footer(footer: Footer) -> bytes:
    """Encode the footer alone, as the sequencer gets it.

    New records are written as the first release wrote them: without the fields about what was rewritten.
    """
    if footer.kind != NEW_RECORDS:
        return _encoder.encode(footer)
    first = (footer.nonce, footer.write_epoch, footer.incarnation, footer.created_ms, footer.zone, footer.extents)
    return _encoder.encode(first)


def encode_trailer(footer_bytes: Bytes, nonce: bytes) -> bytes:
    return TRAILER.pack(nonce, len(footer_bytes), crc32c(footer_bytes), FORMAT_VERSION, 0, MAGIC)


def encode_tail(footer: Footer) -> bytes:
    """Encode footer and trailer, to be appended to the extents."""
    footer_bytes = encode_footer(footer)
    return footer_bytes + encode_trailer(footer_bytes, footer.nonce)


def decode_trailer(data: Bytes) -> Trailer:
    """Decode the trailer at the end of `data`."""
    if len(data) < TRAILER_BYTES:
        raise TruncatedObject(f"{len(data)} bytes are too few for an object")
    nonce, length, checksum, version, reserved, magic = TRAILER.unpack_from(data, len(data) - TRAILER_BYTES)
    if magic != MAGIC:
        raise BadMagic("not an object of Braidlog", help="Another program's file, or an object that was cut short.")
    if version != FORMAT_VERSION or reserved != 0:
        raise UnknownVersion(f"object format {version}.{reserved} is unknown", help="Written by a newer release?")
    if length > FOOTER_BYTES_MAX:
        raise InvalidFooter(f"a footer of {length} bytes is over the limit of {FOOTER_BYTES_MAX}")
    return Trailer(nonce=nonce, footer_length=length, footer_crc32c=checksum, version=version)


def decode_footer_bytes(data: Bytes) -> Footer:
    """Decode and check a footer that was sent without its object."""
    if len(data) > FOOTER_BYTES_MAX:
        raise InvalidFooter(f"a footer of {len(data)} bytes is over the limit of {FOOTER_BYTES_MAX}")
    try:
        footer = _decoder.decode(data)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise InvalidFooter(f"the footer cannot be decoded: {error}") from error
    _check_footer(footer)
    return footer


def decode_object_tail(tail: Bytes, object_size: int) -> Footer:
    """Decode the footer from the last bytes of an object.

    They must hold all of it: see `footer_tail_bytes`.
    """
    length = footer_tail_bytes(tail, object_size)
    if length > len(tail):
        raise TruncatedObject(f"the footer begins {length - len(tail)} bytes before the bytes given")
    trailer = decode_trailer(tail)
    view = memoryview(tail)
    footer_bytes = view[len(tail) - length : len(tail) - TRAILER_BYTES]
    if crc32c(footer_bytes) != trailer.footer_crc32c:
        raise ChecksumMismatch("the footer's checksum does not match")
    footer = decode_footer_bytes(footer_bytes)
    if footer.nonce != trailer.nonce:
        raise InvalidFooter("footer and trailer name different nonces")
    extents_end = extents_length(footer)
    if extents_end != object_size - length:
        raise InvalidFooter(f"extents end at {extents_end}, but the footer begins at {object_size - length}")
    return footer


def footer_tail_bytes(tail: Bytes, object_size: int) -> int:
    """Return the size of footer and trailer, as the last bytes of the object say."""
    trailer = decode_trailer(tail)
    length = trailer.footer_length + TRAILER_BYTES
    if length > object_size:
        raise TruncatedObject(f"footer and trailer of {length} bytes in an object of {object_size}")
    return length


def extents_length(footer: Footer) -> int:
    """Return the size of all extents."""
    if not footer.extents:
        return 0
    last = footer.extents[-1]
    return last.position + last.length


@dataclass(frozen=True, slots=True)
class StoredFooter:
    footer: Footer
    footer_bytes: bytes
    """The footer's bytes as they stand in the object."""
    object_size: int


async def read_footer(store: Store, key: str) -> Footer:
    """Read an object's footer.

    It takes one GET of the object's end, and a second one only for a large footer.
    """
    return (await read_stored_footer(store, key)).footer


async def read_stored_footer(store: Store, key: str) -> StoredFooter:
    """Like `read_footer`, with what else the sequencer needs."""
    tail = await store.get_tail(key, TAIL_READ_BYTES)
    length = footer_tail_bytes(tail.data, tail.size)
    if length > len(tail.data):
        tail = await store.get_tail(key, length)
    footer_bytes = bytes(memoryview(tail.data)[len(tail.data) - length : len(tail.data) - TRAILER_BYTES])
    return StoredFooter(decode_object_tail(tail.data, tail.size), footer_bytes, tail.size)


def describe(footer: Footer, size: int) -> dict[str, Any]:
    """Describe an object's content in plain JSON types."""
    return {
        "format_version": FORMAT_VERSION,
        "nonce": footer.nonce.hex(),
        "write_epoch": footer.write_epoch,
        "incarnation": footer.incarnation,
        "created_ms": footer.created_ms,
        "zone": footer.zone,
        "size_bytes": size,
        "kind": KIND_NAMES.get(footer.kind, str(footer.kind)),
        "extents_bytes": extents_length(footer),
        "extent_count": len(footer.extents),
        "batch_count": sum(len(extent.batches) for extent in footer.extents),
        "record_count": sum(extent.record_count for extent in footer.extents),
        "extents": [_describe_extent(extent) for extent in footer.extents],
        "rewritten": [
            {"base_offset": each.base_offset, "end_offset": each.end_offset, "generation": each.generation}
            for each in footer.rewritten
        ],
    }


def _describe_extent(extent: ExtentEntry) -> dict[str, Any]:
    return {
        "topic_id": extent.topic_id.hex(),
        "partition": extent.partition,
        "position": extent.position,
        "length_bytes": extent.length,
        "record_count": extent.record_count,
        "timestamp_ms_min": extent.timestamp_ms_min,
        "timestamp_ms_max": extent.timestamp_ms_max,
        "payload": "arrow" if extent.payload == ARROW_STREAM else "kafka",
        "batches": [
            {
                "length_bytes": batch.length,
                "offset_count": batch.offset_count,
                "attributes": batch.attributes,
                "timestamp_ms_max": batch.timestamp_ms_max,
                "producer_id": batch.producer_id,
                "producer_epoch": batch.producer_epoch,
                "base_sequence": batch.base_sequence,
            }
            for batch in extent.batches
        ],
    }


def _check_footer(footer: Footer) -> None:
    """Check what the ranges of single fields do not cover.

    This is a hot loop: it sees every batch of the cluster.
    """
    batch_count = 0
    position = 0
    previous_topic_id = b""
    previous_partition = -1
    for extent in footer.extents:
        topic_id = extent.topic_id
        partition = extent.partition
        if topic_id <= previous_topic_id and (topic_id != previous_topic_id or partition <= previous_partition):
            raise InvalidFooter("extents are not in the order of topic id and partition, or one is there twice")
        previous_topic_id = topic_id
        previous_partition = partition
        if extent.position != position:
            raise InvalidFooter(f"an extent lies at {extent.position}, not where the one before it ends ({position})")
        batches = extent.batches
        if batches:
            length = 0
            record_count = 0
            length_min = _KAFKA_BATCH_BYTES_MIN if extent.payload == KAFKA_BATCHES else 1
            for batch in batches:
                batch_length = batch.length
                if batch_length < length_min:
                    raise InvalidFooter(f"a record batch of {batch_length} bytes")
                length += batch_length
                record_count += batch.offset_count
            if length != extent.length:
                raise InvalidFooter(f"an extent of {extent.length} bytes has batches of {length}")
            if record_count != extent.record_count:
                raise InvalidFooter(f"an extent of {extent.record_count} records has batches of {record_count}")
            batch_count += len(batches)
            position += length
        elif extent.payload == KAFKA_BATCHES:
            raise InvalidFooter("an extent of record batches has none")
        else:
            position += extent.length
    if footer.kind != NEW_RECORDS and len(footer.rewritten) != len(footer.extents):
        raise InvalidFooter(f"{len(footer.extents)} rewritten extents with offsets for {len(footer.rewritten)}")
    if batch_count > BATCHES_PER_OBJECT_MAX:
        raise InvalidFooter(f"{batch_count} batches are over the limit of {BATCHES_PER_OBJECT_MAX}")
    if position > OBJECT_BYTES_MAX:
        raise InvalidFooter(f"extents of {position} bytes are over the limit of {OBJECT_BYTES_MAX}")
