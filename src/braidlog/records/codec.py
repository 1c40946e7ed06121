"""The five codecs for a batch's records."""

import struct
import sys
from collections.abc import Callable
from enum import IntEnum
from mmap import mmap
from struct import Struct
from types import ModuleType

import cramjam
from kio.schema.errors import ErrorCode

from braidlog.records.errors import InvalidBatch, RecordsTooLarge


class Codec(IntEnum):
    """How a batch's records are compressed: the low three attribute bits."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_MAX = 4
CODEC_NAMES = {"none": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
"""The names of codecs in `compression.type`, apart from `producer`."""

_GZIP_LEVEL = 6
_LZ4_LEVEL = 9
"""Kafka's default. There too it stands for the fast compressor; all other levels use the thorough one."""
_ZSTD_LEVEL = 3

_RATIO_MAX = {Codec.NONE: 1, Codec.GZIP: 1032, Codec.SNAPPY: 22, Codec.LZ4: 255, Codec.ZSTD: 32_768}
"""The highest ratio of each format: deflate encodes 258 bytes in two bits, snappy 64 in three bytes, LZ4 255 in a byte,
and zstd a block of 128 KiB in four bytes."""

# Java's clients write snappy in blocks, behind a header of magic, version and lowest version.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = Struct(">i")

# Java's clients read LZ4 frames only if their blocks do not depend on one another, which cramjam's frames do. Hence
# frames of our own: magic, flags (version 1, independent blocks), blocks of up to 64 KiB, checksum of these two bytes.
_LZ4_HEADER = bytes((0x04, 0x22, 0x4D, 0x18, 0x60, 0x40, 0x82))
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x80000000
_LZ4_LENGTH = Struct("<I")
_LZ4_END = bytes(4)

_NO_ROOM = "failed to write whole buffer"
"""cramjam's message, for every format, when the buffer is full and there is more data."""

_GUESS_RATIO = 4
_GUESS_BYTES_MIN = 4096
_LAZY_BYTES_MIN = 1024 * 1024


def compress(
    codec: Codec, data: bytes | bytearray | memoryview, *, level: int | None = None, bytes_max: int | None = None
) -> bytes:
    """Compress data into one block that every Kafka client can read.

    Levels are those of Kafka's `compression.<codec>.level`; none and snappy have no levels. Raises `RecordsTooLarge` as
    soon as the result is known to be over `bytes_max`.
    """
    if bytes_max is None:
        bytes_max = sys.maxsize
    match codec:
        case Codec.NONE:
            packed = bytes(data) if len(data) <= bytes_max else None
        case Codec.GZIP:
            packed = _compress_whole(cramjam.gzip, data, _GZIP_LEVEL if level is None else level, bytes_max)
        case Codec.SNAPPY:
            packed = _compress_snappy(memoryview(data), bytes_max)
        case Codec.LZ4:
            packed = _compress_lz4(memoryview(data), _LZ4_LEVEL if level is None else level, bytes_max)
        case Codec.ZSTD:
            packed = _compress_whole(cramjam.zstd, data, _ZSTD_LEVEL if level is None else level, bytes_max)
    if packed is None or len(packed) > bytes_max:
        raise RecordsTooLarge(ErrorCode.message_too_large, f"records compress to more than {bytes_max} bytes")
    return packed


def decompressed_bytes_bound(codec: Codec, packed_bytes_max: int) -> int:
    """Return the most bytes that could be compressed to `packed_bytes_max`.

    It holds whatever their content is.
    """
    return packed_bytes_max * _RATIO_MAX[codec]


def decompress(codec: Codec, data: bytes | bytearray | memoryview, *, bytes_max: int) -> memoryview:
    """Decompress data.

    Raises `InvalidBatch` for damage, and `RecordsTooLarge` past `bytes_max`: no larger buffer is ever allocated.
    """
    match codec:
        case Codec.NONE:
            if len(data) > bytes_max:
                raise _too_large(bytes_max)
            return memoryview(data)
        case Codec.GZIP:
            return _decompress_growing(cramjam.gzip.decompress_into, data, bytes_max)
        case Codec.SNAPPY:
            return _decompress_snappy(memoryview(data), bytes_max)
        case Codec.LZ4:
            return _decompress_growing(cramjam.lz4.decompress_into, data, bytes_max)
        case Codec.ZSTD:
            return _decompress_growing(cramjam.zstd.decompress_into, data, bytes_max)


def _too_large(bytes_max: int) -> RecordsTooLarge:
    return RecordsTooLarge(ErrorCode.message_too_large, f"records decompress to more than {bytes_max} bytes")


def _damaged(reason: object) -> InvalidBatch:
    return InvalidBatch(ErrorCode.invalid_record, f"records cannot be decompressed: {reason}")


def _compress_whole(
    library: ModuleType, data: bytes | bytearray | memoryview, level: int, bytes_max: int
) -> bytes | None:
    """Compress in one go.

    None if it stopped at `bytes_max`; for short data the result may still exceed that.
    """
    if len(data) <= bytes_max:
        return bytes(library.compress(data, level=level))
    out = bytearray(bytes_max)
    try:
        return bytes(memoryview(out)[: library.compress_into(data, out, level=level)])
    except cramjam.CompressionError as error:
        if str(error) != _NO_ROOM:
            raise
        return None


def _compress_snappy(data: memoryview, bytes_max: int) -> bytes | None:
    parts = [_XERIAL_HEADER]
    left = bytes_max
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
        left -= len(block)
        if left < 0:
            return None
    return b"".join(parts)


def _decompress_snappy(data: memoryview, bytes_max: int) -> memoryview:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return memoryview(_decompress_snappy_block(data, bytes_max, bytes_max))
    parts: list[bytearray | mmap] = []
    left = bytes_max
    position = len(_XERIAL_HEADER)
    try:
        while position < len(data):
            (length,) = _BLOCK_LENGTH.unpack_from(data, position)
            position += _BLOCK_LENGTH.size
            if length < 0 or position + length > len(data):
                raise _damaged(f"a block of {length} bytes")
            part = _decompress_snappy_block(data[position : position + length], left, bytes_max)
            left -= len(part)
            parts.append(part)
            position += length
    except struct.error:
        raise _damaged("the last block is cut off") from None
    return memoryview(b"".join(parts))


def _decompress_snappy_block(block: memoryview, left_bytes: int, bytes_max: int) -> bytearray | mmap:
    """Decompress one block, while `left_bytes` of `bytes_max` are left."""
    try:
        length = cramjam.snappy.decompress_raw_len(block)
        if length > left_bytes:
            raise _too_large(bytes_max)
        out = _buffer(length)
        if length and cramjam.snappy.decompress_raw_into(block, out) != length:
            raise _damaged("a block is shorter than it says")
    except cramjam.DecompressionError as error:
        raise _damaged(error) from None
    return out


def _compress_lz4(data: memoryview, level: int, bytes_max: int) -> bytes | None:
    parts = [_LZ4_HEADER]
    left = bytes_max
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        block = data[start : start + _LZ4_BLOCK_BYTES]
        packed = _compress_lz4_block(block, level)
        if len(packed) < len(block):
            parts += (_LZ4_LENGTH.pack(len(packed)), packed)
        else:
            parts += (_LZ4_LENGTH.pack(len(block) | _LZ4_STORED), bytes(block))
        left -= min(len(packed), len(block))
        if left < 0:
            return None
    parts.append(_LZ4_END)
    return b"".join(parts)


def _compress_lz4_block(block: memoryview, level: int) -> bytes:
    if level == _LZ4_LEVEL:
        return bytes(cramjam.lz4.compress_block(block, store_size=False))
    # cramjam respects levels only when it makes a frame: this is the only block of such a frame.
    frame = bytes(cramjam.lz4.compress(block, level=level))
    start = len(_LZ4_HEADER) + _LZ4_LENGTH.size
    (length,) = _LZ4_LENGTH.unpack_from(frame, len(_LZ4_HEADER))
    return frame[start : start + (length & ~_LZ4_STORED)]


def _decompress_growing(
    decompress_into: Callable[[bytes | bytearray | memoryview, bytearray | mmap], int],
    data: bytes | bytearray | memoryview,
    bytes_max: int,
) -> memoryview:
    """Decompress into a buffer of limited size, larger with each attempt.

    The formats need not say how much data they hold, and what they say cannot be trusted.
    """
    size = min(bytes_max, max(_GUESS_BYTES_MIN, _GUESS_RATIO * len(data)))
    while True:
        out = _buffer(size)
        try:
            return memoryview(out)[: decompress_into(data, out)]
        except cramjam.DecompressionError as error:
            if str(error) != _NO_ROOM:
                raise _damaged(error) from None
            if size == bytes_max:
                raise _too_large(bytes_max) from None
        size = min(bytes_max, size * _GUESS_RATIO) if size < _LAZY_BYTES_MIN else bytes_max


def _buffer(size: int) -> bytearray | mmap:
    """Allocate a buffer.

    A large one comes from the system page by page as it is filled: a `bytearray` would be zeroed first, while every
    other thread waits.
    """
    return bytearray(size) if size < _LAZY_BYTES_MIN else mmap(-1, size)
