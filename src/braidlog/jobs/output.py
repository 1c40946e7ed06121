"""The output of a job: gathers extents, uploads objects, reports replacements."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from braidlog.control.interface import JobPartition, NewExtent, NewObject, Replacement, ReplayDone, ScanDone
from braidlog.objects.format import encode_footer, encode_trailer
from braidlog.objects.keys import data_key
from braidlog.objects.layout import KAFKA_BATCHES, MERGED, BatchEntry, ExtentEntry, Footer, RewrittenExtent
from braidlog.objects.store import Bytes, Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.limits import BATCHES_PER_OBJECT_MAX, OBJECT_BYTES_MAX


@dataclass(slots=True, eq=False)
class Completion:
    """The result of a job, as a worker reports it."""

    objects: list[NewObject] = field(default_factory=list)
    replacements: list[Replacement] = field(default_factory=list)
    due_ms: int = -1
    clean_end_offset: int = -1
    scan: ScanDone | None = None
    replay: ReplayDone | None = None


@dataclass(frozen=True, slots=True)
class ExtentPart:
    """Whole batches with their offsets, which cover all up to `end_offset`."""

    end_offset: int
    pieces: Sequence[Bytes]
    length: int
    batches: Sequence[BatchEntry]
    timestamp_ms_min: int
    timestamp_ms_max: int


@dataclass(slots=True, eq=False)
class _OpenExtent:
    partition: JobPartition
    parts: list[ExtentPart] = field(default_factory=list)
    base_offset: int = -1
    end_offset: int = -1
    """What it replaces, once it is closed."""

    @property
    def rewritten(self) -> RewrittenExtent:
        return RewrittenExtent(self.base_offset, self.end_offset, self.partition.generation)

    def entry(self, position: int) -> ExtentEntry:
        batches = [batch for part in self.parts for batch in part.batches]
        return ExtentEntry(
            self.partition.topic_id,
            self.partition.index,
            position,
            sum(part.length for part in self.parts),
            sum(batch.offset_count for batch in batches),
            min(part.timestamp_ms_min for part in self.parts),
            max(part.timestamp_ms_max for part in self.parts),
            KAFKA_BATCHES,
            batches,
        )


class JobOutput:
    """Takes the parts of one replacement after another.

    Partitions come in the order of topic id and index. An object is closed and uploaded when the next part would
    make it larger than its target. Nothing is visible before the swap, so a worker that fails leaves orphans and
    nothing else.
    """

    def __init__(
        self, store: Store, clock: Clock, entropy: Entropy, *, write_epoch: int, target_bytes: int, kind: int = MERGED
    ) -> None:
        """`kind` is `MERGED` or `COMPACTED`, and goes into the footers."""
        self._kind = kind
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._write_epoch = write_epoch
        self._target_bytes = target_bytes
        # Every attempt has a name of its own, so no two attempts ever write the same object.
        self._incarnation = f"job-{entropy.token(8).hex()}"
        self._extents: list[_OpenExtent] = []
        self._size_bytes = 0
        self._batch_count = 0
        self._replacing: list[NewExtent] = []
        self._next_base_offset = 0
        self.completion = Completion()

    async def begin(self, partition: JobPartition, base_offset: int) -> None:
        """Begin a replacement of the partition's extents from `base_offset` on.

        An object has one extent of a partition at most, so a second replacement goes into another object.
        """
        if self._extents and self._extents[-1].partition.partition_id == partition.partition_id:
            await self.flush()
        self._replacing = []
        self._next_base_offset = base_offset
        self._open(partition)

    async def add(self, part: ExtentPart) -> None:
        extent = self._extents[-1]
        is_full = self._size_bytes + part.length > self._target_bytes and self._size_bytes > 0
        if is_full or self._batch_count + len(part.batches) > BATCHES_PER_OBJECT_MAX:
            self._close_extent()
            await self.flush()
            self._open(extent.partition)
        self._extents[-1].parts.append(part)
        self._size_bytes += part.length
        self._batch_count += len(part.batches)

    def end(self, end_offset: int) -> None:
        """End the replacement, which covers everything up to `end_offset`."""
        partition = self._extents[-1].partition
        base_offset = self._replacing[0].base_offset if self._replacing else self._next_base_offset
        self._close_extent(end_offset)
        self.completion.replacements.append(
            Replacement(partition.partition_id, base_offset, end_offset, self._replacing)
        )

    def _open(self, partition: JobPartition) -> None:
        self._extents.append(_OpenExtent(partition))

    def _close_extent(self, end_offset: int | None = None) -> None:
        """Close the open extent, which replaces everything since the previous one."""
        parts = self._extents[-1].parts
        if not parts:
            self._extents.pop()
            return
        if end_offset is None:
            end_offset = parts[-1].end_offset
        self._replacing.append(NewExtent(self._next_base_offset, end_offset, len(self.completion.objects)))
        self._extents[-1].base_offset, self._extents[-1].end_offset = self._next_base_offset, end_offset
        self._next_base_offset = end_offset

    async def flush(self) -> None:
        """Upload the open extents as one object."""
        if not self._extents:
            return
        entries: list[ExtentEntry] = []
        pieces: list[Bytes] = []
        position = 0
        for extent in self._extents:
            entry = extent.entry(position)
            entries.append(entry)
            pieces.extend(piece for part in extent.parts for piece in part.pieces)
            position += entry.length
        nonce = self._entropy.token(16)
        rewritten = [extent.rewritten for extent in self._extents]
        now_ms = self._clock.wall_ms()
        footer = encode_footer(
            Footer(nonce, self._write_epoch, self._incarnation, now_ms, "", entries, self._kind, rewritten)
        )
        pieces += [footer, encode_trailer(footer, nonce)]
        whole = b"".join(pieces)
        assert position <= OBJECT_BYTES_MAX, "an object is closed before it is too large"
        key = data_key(self._write_epoch, self._incarnation, len(self.completion.objects))
        await self._store.put(key, whole)
        self.completion.objects.append(NewObject(key, len(whole), footer))
        self._extents, self._size_bytes, self._batch_count = [], 0, 0
