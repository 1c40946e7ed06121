"""Asks the control plane about partitions.

Which partitions there are, where they begin and end, and where their extents lie.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from braidlog.control.interface import (
    FindAborted,
    FindExtents,
    FindTimestamp,
    FoundAborted,
    FoundExtents,
    IndexedExtent,
    PartitionBounds,
    Snapshot,
    StoredObject,
    TopicInfo,
)
from braidlog.objects.store import NotFound
from braidlog.runtime.limits import BATCH_DECOMPRESSED_BYTES_MAX
from braidlog.spark.errors import JobError, missing_topic
from braidlog.spark.link import Link
from braidlog.spark.options import AtTime, End, Position, Positions, Selection
from braidlog.spark.source.offsets import TopicPartition
from braidlog.spark.source.planning import Aborted, Piece

_QUESTIONS_AT_ONCE = 16
_EXTENTS_PER_PAGE = 10_000
_NO_BYTE_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A snapshot of one partition: offsets [start_offset, end_offset) can be read."""

    topic_id: str
    partition_id: int
    start_offset: int
    end_offset: int
    aborted_end_offset: int
    """The end of the last aborted transaction. From here on, none has records."""


LogState = dict[TopicPartition, PartitionState]


def select_topics(snapshot: Snapshot, selection: Selection) -> list[tuple[TopicInfo, tuple[int, ...]]]:
    """Return the topics to read, with their partitions.

    A named topic that does not exist is an error.
    """
    by_name = {topic.name: topic for topic in snapshot.topics}
    if selection.pattern:
        pattern = re.compile(selection.pattern)
        return [
            (topic, tuple(range(len(topic.partition_ids))))
            for name, topic in sorted(by_name.items())
            if pattern.fullmatch(name)
        ]
    wanted = selection.assigned or dict.fromkeys(selection.names, ())
    missing = sorted(name for name in wanted if name not in by_name)
    if missing:
        raise missing_topic(*missing)
    found: list[tuple[TopicInfo, tuple[int, ...]]] = []
    for name in sorted(wanted):
        topic = by_name[name]
        count = len(topic.partition_ids)
        outside = [partition for partition in wanted[name] if not 0 <= partition < count]
        if outside:
            raise JobError(
                f"{name} has {count} partitions, and no partition {outside[0]}", help="Partitions are numbered from 0."
            )
        found.append((topic, tuple(wanted[name]) or tuple(range(count))))
    return found


def state_of(snapshot: Snapshot, selection: Selection, *, read_committed: bool) -> LogState:
    bounds = {each.partition_id: each for each in snapshot.bounds}
    return {
        (topic.name, partition): _partition_state(
            topic.topic_id, bounds[topic.partition_ids[partition]], read_committed=read_committed
        )
        for topic, partitions in select_topics(snapshot, selection)
        for partition in partitions
    }


def _partition_state(topic_id: bytes, bounds: PartitionBounds, *, read_committed: bool) -> PartitionState:
    end_offset = bounds.high_watermark
    if read_committed and bounds.first_unstable_offset >= 0:
        end_offset = min(end_offset, bounds.first_unstable_offset)
    return PartitionState(
        topic_id.hex(),
        bounds.partition_id,
        bounds.log_start_offset,
        max(end_offset, bounds.log_start_offset),
        bounds.aborted_end_offset,
    )


class LogIndex:
    """Asks the control plane about partitions and extents."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._questions = asyncio.Semaphore(_QUESTIONS_AT_ONCE)

    async def state(self, selection: Selection, *, read_committed: bool) -> LogState:
        return state_of(await self._link.snapshot(), selection, read_committed=read_committed)

    async def resolve(self, positions: Positions, state: LogState, *, what: str) -> dict[TopicPartition, int]:
        """Resolve a position to an offset for every partition of `state`."""
        chosen = _positions_of(positions, state, what)
        found = await asyncio.gather(
            *(self._resolve_one(each, chosen[each], state[each], positions, what) for each in chosen)
        )
        return dict(zip(chosen, found, strict=True))

    async def _resolve_one(
        self, which: TopicPartition, position: Position, state: PartitionState, positions: Positions, what: str
    ) -> int:
        if position is End.EARLIEST:
            return state.start_offset
        if position is End.LATEST:
            return state.end_offset
        if isinstance(position, AtTime):
            offset = await self._offset_at(state, position.timestamp_ms)
            if offset is not None and offset < state.end_offset:
                return offset
            if not positions.lenient:
                raise JobError(
                    f"{what}: {which[0]}-{which[1]} has no record at or after {position.timestamp_ms}",
                    help='option("startingOffsetsByTimestampStrategy", "latest") starts at the end instead.',
                )
            return state.end_offset
        return position

    async def _offset_at(self, state: PartitionState, timestamp_ms: int) -> int | None:
        """Find the first offset with this timestamp or a later one."""
        from_offset = state.start_offset
        looked_again = False
        while True:
            async with self._questions:
                found: FoundExtents = await self._link.ask(
                    "find_timestamp", FindTimestamp(state.partition_id, timestamp_ms, from_offset)
                )
                if not found.extents:
                    return None
                extent = found.extents[0]
                try:
                    data = await self._read(extent, found.objects)
                except NotFound:
                    # The object was replaced after the index was read. By now the index names another one.
                    if looked_again:
                        raise
                    looked_again = True
                    continue
            offset = _first_at(data, extent.base_offset, timestamp_ms, state.start_offset)
            if offset is not None:
                return offset
            from_offset = extent.end_offset

    async def _read(self, extent: IndexedExtent, objects: Iterable[StoredObject]) -> memoryview:
        if extent.inline is not None:
            return memoryview(extent.inline)
        key = next(stored.key for stored in objects if stored.number == extent.object_number)
        store = await self._link.store()
        return memoryview(await store.get_range(key, extent.position, extent.position + extent.length))

    async def pieces(
        self, partition_id: int, start_offset: int, end_offset: int
    ) -> tuple[PartitionBounds, list[Piece]]:
        """Find the extents of [start_offset, end_offset), and the partition's bounds.

        The bounds are those at the last call.
        """
        found_pieces: list[Piece] = []
        offset = start_offset
        while True:
            async with self._questions:
                found: FoundExtents = await self._link.ask(
                    "find_extents", FindExtents(partition_id, offset, _NO_BYTE_LIMIT, _EXTENTS_PER_PAGE)
                )
            if not found.known:
                raise JobError(
                    "the topic was deleted while it was read", help="If it was created again, run the job again."
                )
            keys = {stored.number: stored.key for stored in found.objects}
            for extent in found.extents:
                if extent.base_offset >= end_offset:
                    return found.bounds, found_pieces
                # An extent without an object is the marker of a transaction. It has no records.
                if extent.end_offset > offset and extent.inline is None:
                    found_pieces.append(
                        Piece(
                            extent.base_offset,
                            extent.end_offset,
                            keys[extent.object_number],
                            extent.position,
                            extent.length,
                        )
                    )
            if not found.extents or found.extents[-1].end_offset >= end_offset:
                return found.bounds, found_pieces
            offset = found.extents[-1].end_offset

    async def aborted(self, state: PartitionState, start_offset: int, end_offset: int) -> list[Aborted]:
        """Find the aborted transactions with records in [start_offset, end_offset)."""
        if start_offset >= state.aborted_end_offset:
            return []
        async with self._questions:
            found: FoundAborted = await self._link.ask(
                "find_aborted", FindAborted(state.partition_id, start_offset, end_offset)
            )
        return [Aborted(*each, marker) for each, marker in zip(found.aborted, found.marker_offsets, strict=True)]


def _positions_of(positions: Positions, state: LogState, what: str) -> dict[TopicPartition, Position]:
    if positions.everywhere is not None:
        return dict.fromkeys(state, positions.everywhere)
    given: Mapping[str, Mapping[int, Position]] = positions.by_partition or {}
    chosen = {(topic, partition): at for topic, by in given.items() for partition, at in by.items()}
    if chosen.keys() != state.keys():
        missing = sorted(state.keys() - chosen.keys())
        unknown = sorted(chosen.keys() - state.keys())
        problem = f"does not name {missing[0]}" if missing else f"names {unknown[0]}, which is not read"
        raise JobError(f"{what} {problem}", help="Name every partition that is read: -1 is the end, -2 the beginning.")
    return dict(sorted(chosen.items()))


def _first_at(data: memoryview, base_offset: int, timestamp_ms: int, offset_min: int) -> int | None:
    # Imported here, because the record codec is slow to load, and few reads begin at a timestamp.
    from braidlog.records.placement import place_batches
    from braidlog.records.record import iter_records

    for position, header, offset in place_batches(data, base_offset):
        if header.timestamp_ms_highest < timestamp_ms or header.is_control or not header.record_count:
            continue
        for record in iter_records(
            data[position : position + header.total_bytes], bytes_max=BATCH_DECOMPRESSED_BYTES_MAX
        ):
            at = offset + record.offset - header.base_offset
            if record.timestamp_ms >= timestamp_ms and at >= offset_min:
                return at
    return None
