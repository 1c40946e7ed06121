"""The read path: from a partition and an offset to the bytes that a consumer gets.

The base offset and the leader epoch of a batch lie outside its CRC, so serving a batch changes its first 16 bytes and
copies nothing else, unless the batches are so small that one copy is cheaper than many pieces.
"""

from dataclasses import dataclass
from struct import Struct

from braidlog.agent.view import PartitionView
from braidlog.cache.blocks import BlockCache
from braidlog.control.interface import ControlPlane, FindExtents, IndexedExtent, StoredObject
from braidlog.objects.store import Bytes, NotFound
from braidlog.records.batch import HEAD_BYTES, HEADER_BYTES, PREFIX_BYTES, offset_head

LEADER_EPOCH = 0
"""There are no leaders, hence no elections: the epoch never changes."""
COPY_BELOW_BYTES = 16 * 1024
"""Average batch size below which an extent is copied and patched in place."""

_BATCH_LENGTH = Struct(">i")
_LENGTH_POSITION = 8
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
        if not fresh and (tail := partition.tail_from(offset)) is not None:
            return tail
        found = await self._control.find_extents(
            FindExtents(partition.partition_id, offset, bytes_max), timeout_s=self._call_timeout_s
        )
        objects = {stored.number: stored for stored in found.objects}
        return [(extent, objects[extent.object_number]) for extent in found.extents]

    async def read(self, partition: PartitionView, offset: int, bytes_max: int) -> Slice:
        """Whole batches from `offset` on, at least one, up to about `bytes_max`.

        An object that is gone has been replaced (or expired) since the index was read: look again once.
        """
        try:
            return await self._read(partition, offset, bytes_max, fresh=False)
        except NotFound:
            try:
                return await self._read(partition, offset, bytes_max, fresh=True)
            except NotFound as error:
                raise ExtentGone(str(error)) from error

    async def _read(self, partition: PartitionView, offset: int, bytes_max: int, *, fresh: bool) -> Slice:
        result = Slice([], 0, offset)
        for extent, stored in await self.extents(partition, offset, bytes_max, fresh=fresh):
            if result.size_bytes >= bytes_max and result.buffers:
                break
            data = await self._cache.read(stored.key, stored.size, extent.position, extent.position + extent.length)
            append_batches(result, data, extent.base_offset, bytes_max)
            if result.next_offset < extent.end_offset:
                break
        return result


def append_batches(result: Slice, data: memoryview, base_offset: int, bytes_max: int) -> None:
    """Add the batches of an extent that hold `result.next_offset` or what follows, while they fit.

    The first batch is sent however large it is: a consumer could not get past it otherwise.
    """
    start, spans, next_offset = _select(data, base_offset, result, bytes_max)
    if not spans:
        return
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


def _select(
    data: memoryview, base_offset: int, result: Slice, bytes_max: int
) -> tuple[int, list[tuple[int, int, int]], int]:
    """The batches to send as (position, length, offset), where the first one starts, and the offset behind the last."""
    spans: list[tuple[int, int, int]] = []
    start = position = 0
    offset = base_offset
    size_bytes = result.size_bytes
    length_at, size = _BATCH_LENGTH.unpack_from, len(data)
    while position < size:
        if position + HEADER_BYTES > size:
            raise DamagedExtent(f"{size - position} bytes behind the last batch")
        length = length_at(data, position + _LENGTH_POSITION)[0] + PREFIX_BYTES
        end_offset = offset + length_at(data, position + _LAST_OFFSET_DELTA_POSITION)[0] + 1
        if length < HEADER_BYTES or position + length > size or end_offset <= offset:
            raise DamagedExtent(f"a batch of {length} bytes and {end_offset - offset} records at {position}")
        if end_offset > result.next_offset:
            if size_bytes and size_bytes + length > bytes_max:
                break
            if not spans:
                start = position
            spans.append((position, length, offset))
            size_bytes += length
        position += length
        offset = end_offset
    return start, spans, offset if spans else result.next_offset
