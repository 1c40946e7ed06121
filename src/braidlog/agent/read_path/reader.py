"""The read path: from a partition and an offset to the bytes that a consumer gets.

The base offset and the leader epoch of a batch lie outside its CRC, so serving a batch changes its first 16 bytes and
copies nothing else, unless the batches are so small that one copy is cheaper than many pieces.
"""

from collections import OrderedDict
from dataclasses import dataclass
from struct import Struct

import structlog

from braidlog.agent.cluster.view import PartitionView
from braidlog.cache.blocks import BlockCache
from braidlog.control.interface import ControlPlane, FindExtents, IndexedExtent, StoredObject
from braidlog.objects.store import Bytes, NotFound, StoreError
from braidlog.records.batch import HEAD_BYTES, HEADER_BYTES, PREFIX_BYTES, offset_head
from braidlog.records.leader_epochs import FIRST_EPOCH, LeaderEpochs, epoch_at

log = structlog.get_logger(__name__)

OFFSET_MAX = (1 << 63) - 1
DAMAGED_MAX = 1000
"""How many extents that are damaged in the store are remembered."""
COPY_BELOW_BYTES = 16 * 1024
"""Average batch size below which an extent is copied and patched in place."""

_BATCH_START = Struct(">qi")
"""Base offset and batch length."""
_LAST_OFFSET_DELTA = Struct(">i")
_LAST_OFFSET_DELTA_POSITION = 23
_HEAD_PATCH = Struct(">qii")


class DamagedExtent(Exception):
    """The stored bytes are not the batches that the index promises."""


class ExtentGone(Exception):
    """The index names an object that is not there, even after a second look."""


@dataclass(slots=True)
class Slice:
    """Record batches as they are sent, and the offset after the last of them."""

    buffers: list[Bytes]
    size_bytes: int
    next_offset: int
    epochs: LeaderEpochs = FIRST_EPOCH
    """The partition's leader epochs, one of which goes into each batch."""


class Reader:
    """Reads batches of a partition from the cache and the store."""

    def __init__(self, control: ControlPlane, cache: BlockCache, *, call_timeout_s: float) -> None:
        self._control = control
        self._cache = cache
        self._call_timeout_s = call_timeout_s
        self._damaged: OrderedDict[tuple[str, int], None] = OrderedDict()
        """The key and position of extents that are damaged in the store itself. Reading them again does not help."""

    async def extents(
        self, partition: PartitionView, offset: int, bytes_max: int, *, fresh: bool = False
    ) -> list[tuple[IndexedExtent, StoredObject]]:
        """The extents from the one that holds `offset` on.

        They come from the view's tail or from the control plane.
        """
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

    async def _append(
        self,
        result: Slice,
        extent: IndexedExtent,
        stored: StoredObject,
        bytes_max: int,
        end_offset: int,
        at_least_one: bool,
    ) -> bool:
        """Do `append_batches` for an extent.

        If the cached copy is damaged, read it from the store again.
        """

        def append(data: memoryview) -> bool:
            if len(data) != extent.length:
                raise DamagedExtent(f"{len(data)} bytes of {extent.length}")
            return append_batches(result, data, extent.base_offset, bytes_max, end_offset, at_least_one=at_least_one)

        name = (stored.key, extent.position)
        data = await self.bytes_of(extent, stored)
        try:
            return append(data)
        except DamagedExtent as damage:
            if extent.inline is not None or name in self._damaged:
                raise
            log.warning(
                "an extent is damaged in the cache and read again",
                key=stored.key,
                position=extent.position,
                error=str(damage),
            )
        end = extent.position + extent.length
        data = await self._cache.read_again(stored.key, stored.size, extent.position, end)
        try:
            return append(data)
        except DamagedExtent:
            self._damaged[name] = None
            if len(self._damaged) > DAMAGED_MAX:
                self._damaged.popitem(last=False)
            raise

    def _held(self, extent: IndexedExtent, stored: StoredObject) -> memoryview | None:
        """The batches of an extent if they are in memory."""
        if extent.inline is not None:
            return memoryview(extent.inline)
        return self._cache.hit(stored.key, extent.position, extent.position + extent.length)

    def at_hand(
        self,
        partition: PartitionView,
        offset: int,
        bytes_max: int,
        end_offset: int = OFFSET_MAX,
        *,
        at_least_one: bool = True,
    ) -> Slice | None:
        """Does what `read` does, from memory only.

        Returns None if something is not in memory.
        """
        result = Slice([], 0, offset, partition.leader_epochs)
        for extent, stored in partition.tail_from(offset, bytes_max) or ():
            if (result.size_bytes >= bytes_max and result.buffers) or extent.base_offset >= end_offset:
                break
            data = self._held(extent, stored)
            if data is None or len(data) != extent.length:
                return None
            try:
                all_fit = append_batches(
                    result, data, extent.base_offset, bytes_max, end_offset, at_least_one=at_least_one
                )
            except DamagedExtent:
                break  # if nothing comes before it, `read` finds out whether only the cached copy is damaged
            if not all_fit:
                return result
        return result if result.buffers else None

    async def read(
        self,
        partition: PartitionView,
        offset: int,
        bytes_max: int,
        end_offset: int = OFFSET_MAX,
        *,
        at_least_one: bool = True,
    ) -> Slice:
        """Whole batches from `offset` on, up to `bytes_max`.

        Only those that begin below `end_offset` are read.

        With `at_least_one`, the first batch is returned however large it is. An object that is gone was replaced or has
        expired since the index was read, so the index is asked once more. If an extent cannot be read, the consumer
        gets what comes before it, and the next read raises the error.
        """
        try:
            return await self._read(partition, offset, bytes_max, end_offset, at_least_one, fresh=False)
        except NotFound:
            try:
                return await self._read(partition, offset, bytes_max, end_offset, at_least_one, fresh=True)
            except NotFound as error:
                raise ExtentGone(str(error)) from error

    async def _read(
        self,
        partition: PartitionView,
        offset: int,
        bytes_max: int,
        end_offset: int,
        at_least_one: bool,
        *,
        fresh: bool,
    ) -> Slice:
        result = Slice([], 0, offset, partition.leader_epochs)
        while True:
            found = await self.extents(partition, result.next_offset, bytes_max, fresh=fresh)
            for extent, stored in found:
                if (result.size_bytes >= bytes_max and result.buffers) or extent.base_offset >= end_offset:
                    return result
                try:
                    all_fit = await self._append(result, extent, stored, bytes_max, end_offset, at_least_one)
                except (StoreError, DamagedExtent):
                    if not result.buffers:
                        raise
                    return result
                if not all_fit:
                    return result
            if result.buffers or not found or found[-1][0].end_offset <= result.next_offset:
                return result
            # These extents have nothing from the offset on, so continue after them.
            result.next_offset = found[-1][0].end_offset


def append_batches(
    result: Slice,
    data: memoryview,
    base_offset: int,
    bytes_max: int,
    end_offset: int = OFFSET_MAX,
    *,
    at_least_one: bool = True,
) -> bool:
    """Add an extent's batches from `result.next_offset` on, while they fit.

    Only batches that begin below `end_offset` are added.

    Returns whether all of them were added. With `at_least_one` the slice's first batch is sent however large it is: a
    consumer could not get past it otherwise. Compaction leaves gaps, so an extent may end before the wanted offset.
    Then nothing is added, and the next extent follows.
    """
    first_bytes_max = OFFSET_MAX if at_least_one else bytes_max
    start, spans, next_offset, all_fit = _select(data, base_offset, result, bytes_max, first_bytes_max, end_offset)
    if not spans:
        return all_fit
    end = spans[-1][0] + spans[-1][1]
    epochs, epoch = result.epochs, epoch_at(result.epochs, spans[0][2])
    is_one_epoch = epoch == epochs[-1][0] or epoch_at(epochs, spans[-1][2]) == epoch
    if end - start < COPY_BELOW_BYTES * len(spans):
        copied = bytearray(data[start:end])
        for position, length, offset in spans:
            own = epoch if is_one_epoch else epoch_at(epochs, offset)
            _HEAD_PATCH.pack_into(copied, position - start, offset, length - PREFIX_BYTES, own)
        result.buffers.append(copied)
    else:
        for position, length, offset in spans:
            own = epoch if is_one_epoch else epoch_at(epochs, offset)
            result.buffers.append(offset_head(offset, length - PREFIX_BYTES, own))
            result.buffers.append(data[position + HEAD_BYTES : position + length])
    result.size_bytes += end - start
    result.next_offset = next_offset
    return all_fit


def _select(
    data: memoryview, base_offset: int, result: Slice, bytes_max: int, first_bytes_max: int, offset_limit: int
) -> tuple[int, list[tuple[int, int, int]], int, bool]:
    """Choose the batches to send.

    Returns the start of the first one, all of them as (position, length, offset), the offset after the last, and
    whether none was left out. Offsets follow the rules of `records.placement`. This loop sees every batch.
    """
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
            if size_bytes + length > (bytes_max if size_bytes else first_bytes_max) or batch_offset >= offset_limit:
                all_fit = False
                break
            if not spans:
                start = position
            spans.append((position, length, batch_offset))
            size_bytes += length
        position += length
        offset = end_offset
    return start, spans, offset if spans else result.next_offset, all_fit
