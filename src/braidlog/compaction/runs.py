"""The output of a compaction: runs of batches with their offsets.

Each is as large as an object should be.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct

from fastcrc.crc32 import iscsi as crc32c

from braidlog.records.batch import CODEC_MASK, CRC_START, HEADER_BYTES, MAGIC, PREFIX_BYTES, BatchHeader
from braidlog.records.placement import write_base_offset
from braidlog.records.summary import RunSummary, SummaryBuilder

_HEADER = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_CRC_POSITION = 17
_CHUNK_BYTES = 4 * 1024 * 1024
BATCHES_PER_RUN_MAX = 65_536
"""Bounds the footer, which has an entry for each batch."""


@dataclass(frozen=True, slots=True)
class CompactedRun:
    """Batches that replace everything in [base_offset, end_offset), including gaps."""

    base_offset: int
    end_offset: int
    parts: Sequence[memoryview]
    """Buffers of whole batches, with `summary.length` bytes in total."""
    summary: RunSummary


class RunWriter:
    """Gathers batches into runs.

    A run ends when the next batch would make it too large.
    """

    def __init__(self, base_offset: int, *, bytes_target: int) -> None:
        self._bytes_target = bytes_target
        self._base_offset = base_offset
        self._parts: list[memoryview] = []
        self._chunk = memoryview(b"")
        self._used_bytes = 0
        self._summary = SummaryBuilder()

    @property
    def is_empty(self) -> bool:
        return not self._summary.batch_count

    def add_copy(self, batch: memoryview, header: BatchHeader) -> CompactedRun | None:
        """Add a batch unchanged except for its offset.

        Returns the previous run if the batch ends it.
        """
        finished = self._make_room(header.base_offset, len(batch))
        room = self._take(len(batch))
        room[:] = batch
        write_base_offset(room, 0, header.base_offset)
        self._summary.add(header)
        return finished

    def add(
        self, header: BatchHeader, payload_bytes: int, write: Callable[[memoryview], object]
    ) -> CompactedRun | None:
        """Add a batch with these fields and the payload that `write` fills in.

        Sets its length and CRC.
        """
        length = HEADER_BYTES + payload_bytes
        finished = self._make_room(header.base_offset, length)
        header = header._replace(batch_length=length - PREFIX_BYTES, magic=MAGIC, crc=0)
        room = self._take(length)
        _HEADER.pack_into(room, 0, *header)
        write(room[HEADER_BYTES:])
        _CRC.pack_into(room, _CRC_POSITION, crc32c(room[CRC_START:]))
        self._summary.add(header)
        return finished

    def add_empty(self, header: BatchHeader) -> CompactedRun | None:
        """Add a batch without records, to keep its header."""
        header = header._replace(attributes=header.attributes & ~CODEC_MASK, record_count=0)
        return self.add(header, 0, _write_nothing)

    def cut(self, end_offset: int) -> CompactedRun | None:
        """End the run at `end_offset`, where the next one begins.

        Does nothing and returns None if it is empty.
        """
        if self.is_empty:
            return None
        self._finish_chunk()
        run = CompactedRun(self._base_offset, end_offset, self._parts, self._summary.finish())
        self._base_offset = end_offset
        self._parts = []
        self._summary = SummaryBuilder()
        return run

    def skip_to(self, base_offset: int) -> None:
        """Begin the next run at another offset."""
        self._base_offset = base_offset

    def _make_room(self, offset: int, length: int) -> CompactedRun | None:
        if self._summary.length + length <= self._bytes_target and self._summary.batch_count < BATCHES_PER_RUN_MAX:
            return None
        return self.cut(offset)

    def _take(self, length: int) -> memoryview:
        """Return memory for the next batch.

        A run is in chunks: a large buffer would be fresh memory every time.
        """
        if self._used_bytes + length > len(self._chunk):
            self._finish_chunk()
            self._chunk = memoryview(bytearray(max(_CHUNK_BYTES, length)))
        room = self._chunk[self._used_bytes : self._used_bytes + length]
        self._used_bytes += length
        return room

    def _finish_chunk(self) -> None:
        if self._used_bytes:
            self._parts.append(self._chunk[: self._used_bytes])
            self._chunk = self._chunk[self._used_bytes :]
            self._used_bytes = 0


def _write_nothing(room: memoryview) -> None:
    """Write an empty payload."""
