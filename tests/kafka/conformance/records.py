"""Record batches by hand, right and wrong, from nothing but the format's description."""

import struct

import crc32c

HEADER_BYTES = 61


def _varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def record(delta: int, value: bytes, key: bytes | None = None, *, delta_ms: int = 0) -> bytes:
    body = b"\0" + _varint(delta_ms) + _varint(delta)
    body += _varint(-1) if key is None else _varint(len(key)) + key
    body += _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def batch(
    *values: bytes,
    key: bytes | None = None,
    magic: int = 2,
    attributes: int = 0,
    timestamp_ms: int,
    producer: tuple[int, int, int] = (-1, -1, -1),
    count: int | None = None,
    last_delta: int | None = None,
    bad_crc: bool = False,
) -> bytes:
    """A batch of these values; the rest is as it should be unless told otherwise."""
    records = b"".join(record(delta, value, key) for delta, value in enumerate(values))
    count = len(values) if count is None else count
    last_delta = len(values) - 1 if last_delta is None else last_delta
    return raw_batch(
        records,
        count,
        magic=magic,
        attributes=attributes,
        timestamp_ms=timestamp_ms,
        producer=producer,
        last_delta=last_delta,
        bad_crc=bad_crc,
    )


def raw_batch(
    payload: bytes,
    count: int,
    *,
    magic: int = 2,
    attributes: int = 0,
    timestamp_ms: int,
    producer: tuple[int, int, int] = (-1, -1, -1),
    last_delta: int | None = None,
    bad_crc: bool = False,
) -> bytes:
    """A batch with these bytes as its records, whatever they are."""
    producer_id, epoch, sequence = producer
    last_delta = count - 1 if last_delta is None else last_delta
    checked = struct.pack(
        ">hiqqqhii", attributes, last_delta, timestamp_ms, timestamp_ms, producer_id, epoch, sequence, count
    )
    checked += payload
    crc = crc32c.crc32c(checked) ^ (1 if bad_crc else 0)
    body = struct.pack(">ibI", 0, magic, crc) + checked
    return struct.pack(">qi", 0, len(body)) + body
