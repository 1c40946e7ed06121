"""The read path: from a partition and an offset to the bytes that a consumer gets.

The base offset and the leader epoch of a batch lie outside its CRC, so serving a batch changes its first 16 bytes and
copies nothing else, unless the batches are so small that one copy is cheaper than many pieces.
"""

from dataclasses import dataclass
from struct import Struct

from braidlog.agent.view import PartitionView
from braidlog.cache.blocks import BlockCache
from braidlog.control.interface import ControlPlane, FindExtents, IndexedExtent, StoredObject
from braidlog.objects.store import Bytes, NotFound, StoreError
from braidlog.records.batch import HEAD_BYTES, HEADER_BYTES, PREFIX_BYTES, offset_head

LEADER_EPOCH = 0
"""There are no leaders, hence no elections: the epoch never changes."""
OFFSET_MAX = (1 << 63) - 1
COPY_BELOW_BYTES = 16 * 1024
"""Average batch size below which an extent is copied and patched in place."""

_BATCH_START = Struct(">qi")
"""Base offset and batch length."""
_LAST_OFFSET_DELTA = Struct(">i")
_LAST_OFFSET_DELTA_POSITION = 23
_HEAD_PATCH = Struct(">qii")


class DamagedExtent(Exception):
    """Stored bytes that are not the batches that the index promises."""


class ExtentGone(Exception):
    """The index named an object that is not there, even after looking again."""


@dataclass(slots=True)
class Slice:
    """Record batches as they are sent, and the offset behind the last of them."""

    buffers: list[Bytes]
    size_bytes: int
    next_offset: int


class Reader:
    def __init__(self, control: ControlPlane, cache: BlockCache, *, call_timeout_s: float) -> None:
        self._control = control
        self._cache = cache
        self._call_timeout_s = call_timeout_s

    async def extents(
        self, partition: PartitionView, offset: int, bytes_max: int, *, fresh: bool = False
    ) -> list[tuple[IndexedExtent, StoredObject]]:
        """Extents from the one that holds `offset` on: from the tail at hand, or from the control plane."""
        if not fresh and (tail := partition.tail_from(offset, bytes_max)) is not None:
            return tail
        found = await self._control.find_extents(
            FindExtents(partition.partition_id, offset, bytes_max), timeout_s=self._call_timeout_s
        )
        objects = {stored.number: stored for stored in found.objects}
        return [(extent, objects[extent.object_number]) for extent in found.extents]

    async def bytes_of(self, extent: IndexedExtent, stored: StoredObject) -> memoryview:
        """The batches of an extent, as they are stored."""
        held = self._held(extent, stored)
        if held is not None:
            return held
        return await self._cache.read(stored.key, stored.size, extent.position, extent.position + extent.length)

    def _held(self, extent: IndexedExtent, stored: StoredObject) -> memoryview | None:
        """The same, where it is in memory."""
        if extent.inline is not None:
            return memoryview(extent.inline)
        return self._cache.hit(stored.key, extent.position, extent.position + extent.length)

    def at_hand(
        self, partition: PartitionView, offset: int, bytes_max: int, end_offset: int = OFFSET_MAX
    ) -> Slice | None:
        """What `read` gives, where all of it is in memory. None: something has to be asked for."""
        result = Slice([], 0, offset)
        for extent, stored in partition.tail_from(offset, bytes_max) or ():
            if (result.size_bytes >= bytes_max and result.buffers) or extent.base_offset >= end_offset:
                break
            data = self._held(extent, stored)
            if data is None:
                return None
            try:
                all_fit = append_batches(result, data, extent.base_offset, bytes_max, end_offset)
            except DamagedExtent:
                if not result.buffers:
                    raise
                break
            if not all_fit:
                break
        return result if result.buffers else None

    async def read(self, partition: PartitionView, offset: int, bytes_max: int, end_offset: int = OFFSET_MAX) -> Slice:
        """Whole batches from `offset` on, at least one, up to about `bytes_max`, and only such below `end_offset`.

        An object that is gone has been replaced (or expired) since the index was read: look again once. What cannot be
        read does not keep from a consumer what comes before it: whoever asks for it next is told.
        """
        try:
            return await self._read(partition, offset, bytes_max, end_offset, fresh=False)
        except NotFound:
            try:
                return await self._read(partition, offset, bytes_max, end_offset, fresh=True)
            except NotFound as error:
                raise ExtentGone(str(error)) from error

    async def _read(
        self, partition: PartitionView, offset: int, bytes_max: int, end_offset: int, *, fresh: bool
    ) -> Slice:
        result = Slice([], 0, offset)
        while True:
            found = await self.extents(partition, result.next_offset, bytes_max, fresh=fresh)
            for extent, stored in found:
                if (result.size_bytes >= bytes_max and result.buffers) or extent.base_offset >= end_offset:
                    return result
                try:
                    data = await self.bytes_of(extent, stored)
                    all_fit = append_batches(result, data, extent.base_offset, bytes_max, end_offset)
                except (StoreError, DamagedExtent):
                    if not result.buffers:
                        raise
                    return result
                if not all_fit:
                    return result
            if result.buffers or not found or found[-1][0].end_offset <= result.next_offset:
                return result
            # Nothing is left of these extents from the offset on, so what follows them is next.
            result.next_offset = found[-1][0].end_offset


def append_batches(
    result: Slice, data: memoryview, base_offset: int, bytes_max: int, end_offset: int = OFFSET_MAX
) -> bool:
    """Add the batches of an extent that hold `result.next_offset` or what follows, while they fit and begin below
    `end_offset`. True if all did.

    The first batch is sent however large it is: a consumer could not get past it otherwise. Compaction leaves gaps, so
    an extent may end before the offset that is looked for: then nothing is added, and the next one goes on.
    """
    start, spans, next_offset, all_fit = _select(data, base_offset, result, bytes_max, end_offset)
    if not spans:
        return all_fit
    end = spans[-1][0] + spans[-1][1]
    if end - start < COPY_BELOW_BYTES * len(spans):
        copied = bytearray(data[start:end])
        for position, length, offset in spans:
            _HEAD_PATCH.pack_into(copied, position - start, offset, length - PREFIX_BYTES, LEADER_EPOCH)
        result.buffers.append(copied)
    else:
        for position, length, offset in spans:
            result.buffers.append(offset_head(offset, length - PREFIX_BYTES, LEADER_EPOCH))
            result.buffers.append(data[position + HEAD_BYTES : position + length])
    result.size_bytes += end - start
    result.next_offset = next_offset
    return all_fit


def _select(
    data: memoryview, base_offset: int, result: Slice, bytes_max: int, offset_limit: int
) -> tuple[int, list[tuple[int, int, int]], int, bool]:
    """The batches to send as (position, length, offset), where the first one starts, the offset behind the last, and
    whether none was left for want of room. Offsets are as `records.placing` says; this loop sees every batch."""
    spans: list[tuple[int, int, int]] = []
    start = position = 0
    offset = base_offset
    size_bytes = result.size_bytes
    all_fit = True
    start_at, delta_at, size = _BATCH_START.unpack_from, _LAST_OFFSET_DELTA.unpack_from, len(data)
    while position < size:
        if position + HEADER_BYTES > size:
            raise DamagedExtent(f"{size - position} bytes behind the last batch")
        stored_offset, length = start_at(data, position)
        length += PREFIX_BYTES
        batch_offset = stored_offset if stored_offset > offset else offset
        end_offset = batch_offset + delta_at(data, position + _LAST_OFFSET_DELTA_POSITION)[0] + 1
        if length < HEADER_BYTES or position + length > size or end_offset <= batch_offset:
            raise DamagedExtent(f"a batch of {length} bytes and {end_offset - batch_offset} records at {position}")
        if end_offset > result.next_offset:
            if (size_bytes and size_bytes + length > bytes_max) or batch_offset >= offset_limit:
                all_fit = False
                break
            if not spans:
                start = position
            spans.append((position, length, batch_offset))
            size_bytes += length
        position += length
        offset = end_offset
    return start, spans, offset if spans else result.next_offset, all_fit
