"""Where the batches of an extent lie in the log.

A batch that was uploaded has no offset yet: its base offset is 0, and it follows the batch before it. Merging and
compaction rewrite extents, and write its offset into each batch, outside the CRC; between two such batches there may be
a gap, of records that compaction removed. So one rule holds for all: **a batch lies at its own base offset, or right
behind the one before it, whichever is higher.**
"""

from collections.abc import Iterator
from struct import Struct

from braidlog.records.batch import BatchHeader, scan_batches

_BASE_OFFSET = Struct(">q")


def place_batches(extent: memoryview, base_offset: int) -> Iterator[tuple[int, BatchHeader, int]]:
    """Yield position, stored header and offset of every batch of an extent.

    The extent begins at `base_offset`.
    """
    next_offset = base_offset
    for position, header in scan_batches(extent):
        offset = max(next_offset, header.base_offset)
        yield position, header, offset
        next_offset = offset + header.offset_count


def write_base_offset(batch: memoryview | bytearray, position: int, offset: int) -> None:
    """Write a batch's final offset into its header."""
    _BASE_OFFSET.pack_into(batch, position, offset)
