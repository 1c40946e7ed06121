"""What compaction writes: runs of batches that carry their offsets, each as large as an object should be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct

from fastcrc.crc32 import iscsi as crc32c

from braidlog.records.batch import CODEC_MASK, CRC_START, HEADER_BYTES, MAGIC, PREFIX_BYTES, BatchHeader
from braidlog.records.placing import write_base_offset
from braidlog.records.summary import RunSummary, SummaryBuilder

_HEADER = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_CRC_POSITION = 17
_CHUNK_BYTES = 4 * 1024 * 1024
BATCHES_PER_RUN_MAX = 65_536
"""Of the footer's making: it has an entry for each batch."""


@dataclass(frozen=True, slots=True)
class CompactedRun:
    """Batches that take the place of all there was in [base_offset, end_offset), gaps included."""

    base_offset: int
    end_offset: int
    parts: Sequence[memoryview]
    """Each of whole batches; together `summary.length` bytes."""
    summary: RunSummary


class RunWriter:
    """Gathers batches, and cuts a run whenever the next one would make it too large."""

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
        """A batch as it is, but with its offset. Returns the run before it, if that is finished by it."""
        finished = self._make_room(header.base_offset, len(batch))
        room = self._take(len(batch))
        room[:] = batch
        write_base_offset(room, 0, header.base_offset)
        self._summary.add(header)
        return finished

    def add(
        self, header: BatchHeader, payload_bytes: int, write: Callable[[memoryview], object]
    ) -> CompactedRun | None:
        """A batch of these fields and of the payload that `write` fills in, with length and CRC made to fit."""
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
        """A batch without records, for what its header says."""
        header = header._replace(attributes=header.attributes & ~CODEC_MASK, record_count=0)
        return self.add(header, 0, _write_nothing)

    def cut(self, end_offset: int) -> CompactedRun | None:
        """Finish the run at `end_offset`, where the next one begins. None, and nothing is finished, if it is empty."""
        if self.is_empty:
            return None
        self._finish_chunk()
        run = CompactedRun(self._base_offset, end_offset, self._parts, self._summary.finish())
        self._base_offset = end_offset
        self._parts = []
        self._summary = SummaryBuilder()
        return run

    def skip_to(self, base_offset: int) -> None:
        """Begin the next run elsewhere."""
        self._base_offset = base_offset

    def _make_room(self, offset: int, length: int) -> CompactedRun | None:
        if self._summary.length + length <= self._bytes_target and self._summary.batch_count < BATCHES_PER_RUN_MAX:
            return None
        return self.cut(offset)

    def _take(self, length: int) -> memoryview:
        """Memory for the next batch. A run is in pieces, because one large one would be fresh memory every time."""
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
    """Nothing is what it has room for."""
