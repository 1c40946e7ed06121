"""The extent index: where each partition's offsets lie.

Its oldest records are removed here, too.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

from kio.schema.errors import ErrorCode
from msgspec import structs

from braidlog.control.catalog import Catalog
from braidlog.control.foundation import Foundation
from braidlog.control.interface import (
    BoundsAnswer,
    BoundsChanged,
    BoundsRequest,
    DeletedRecords,
    DeleteRecords,
    FindExtents,
    FindTimestamp,
    FoundExtents,
    IndexedExtent,
    PartitionBounds,
    StoredObject,
)
from braidlog.control.log.recent import RecentExtents
from braidlog.control.metadata.store import Row, Transaction
from braidlog.control.transactions.aborted import drop_aborted

EXTENTS_PER_ANSWER_MAX = 10_000
EXTENTS_PER_REMOVAL_MAX = 5_000

_Pair: TypeAlias = tuple[IndexedExtent, StoredObject]

_ROWS_PER_QUERY = 128
_COLUMNS = (
    "e.partition_id, e.base_offset, e.end_offset, e.object_number, e.position, e.length,"
    " e.timestamp_ms_min, e.timestamp_ms_max, e.inline_bytes, o.object_key, o.size_bytes"
)
_FROM = "FROM extents e LEFT JOIN objects o ON o.number = e.object_number"
"""A left join, because the markers that end transactions are in no object."""


class ExtentIndex:
    def __init__(self, foundation: Foundation, catalog: Catalog, recent: RecentExtents) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._catalog = catalog
        self._recent = recent
        self._feed = foundation.feed
        self._clock = foundation.clock

    async def find_extents(self, request: FindExtents) -> FoundExtents:
        state = self._catalog.partitions.get(request.partition_id)
        recent = state.recent if state is not None else []
        start = bisect_right(recent, request.offset, key=_end_offset)
        extents_max = max(1, min(request.extents_max, EXTENTS_PER_ANSWER_MAX))

        def search(tx: Transaction, bounds: PartitionBounds, newest: list[_Pair]) -> list[_Pair]:
            found: list[_Pair] = []
            if start == 0:
                found = _extents_from(tx, bounds, request, extents_max)
            # Some of the newest extents may have moved into the table meanwhile.
            end_offset = found[-1][0].end_offset if found else 0
            found.extend(pair for pair in newest if pair[0].base_offset >= end_offset)
            bytes_left = request.bytes_max
            for count, (extent, _) in enumerate(found[:extents_max], start=1):
                bytes_left -= extent.length
                if bytes_left <= 0:
                    return found[:count]
            return found[:extents_max]

        return await self._find(request.partition_id, recent[start : start + extents_max], search)

    async def find_timestamp(self, request: FindTimestamp) -> FoundExtents:
        state = self._catalog.partitions.get(request.partition_id)
        highest = request.timestamp_ms == -1

        def search(tx: Transaction, bounds: PartitionBounds, newest: list[_Pair]) -> list[_Pair]:
            from_offset = max(request.from_offset, bounds.log_start_offset)
            found = _extent_at(tx, bounds.partition_id, request.timestamp_ms, from_offset)
            newest = [pair for pair in newest if pair[0].end_offset > from_offset]
            if highest:
                found = [max([*found, *newest], key=_latest_ms)] if found or newest else []
            elif not found:
                found = [pair for pair in newest if pair[0].timestamp_ms_max >= request.timestamp_ms][:1]
            return found

        return await self._find(request.partition_id, list(state.recent) if state is not None else [], search)

    async def _find(
        self,
        partition_id: int,
        recent: list[IndexedExtent],
        search: Callable[[Transaction, PartitionBounds, list[_Pair]], list[_Pair]],
    ) -> FoundExtents:
        """Search the table and the newest extents as one.

        The newest are taken before the table is read, so that none is missed that moves over meanwhile.
        """
        state = self._catalog.partitions.get(partition_id)
        # The table knows neither for extents that are not in it.
        now = state.bounds if state is not None else PartitionBounds(partition_id, 0, 0, 0)
        newest = [(extent, self._recent.stored[extent.object_number]) for extent in recent]

        def find(tx: Transaction) -> FoundExtents:
            bounds = _read_bounds(tx, partition_id)
            if bounds is None or state is None:
                return FoundExtents(PartitionBounds(partition_id, 0, 0, 0), [], [], known=False)
            start = bounds.log_start_offset
            bounds = structs.replace(now, log_start_offset=start, high_watermark=max(now.high_watermark, start))
            pairs = [
                pair
                for pair in search(tx, bounds, newest)
                if bounds.log_start_offset < pair[0].end_offset <= bounds.high_watermark
            ]
            objects = {stored.number: stored for _, stored in pairs}
            return FoundExtents(bounds, [extent for extent, _ in pairs], list(objects.values()))

        return await self._metadata.read(find)

    async def current_bounds(self, request: BoundsRequest) -> BoundsAnswer:
        """Return the bounds from memory, after proof that nobody else has taken over."""
        await self._metadata.read(_nothing)
        partitions = self._catalog.partitions
        return BoundsAnswer([partitions[each].bounds for each in request.partition_ids if each in partitions])

    async def delete_records(self, request: DeleteRecords) -> DeletedRecords:
        state = self._catalog.partitions.get(request.partition_id)
        if state is None:
            return DeletedRecords(int(ErrorCode.unknown_topic_or_partition), -1)
        if "delete" not in self._catalog.settings(self._catalog.topics[state.topic_id]).cleanup_policy:
            return DeletedRecords(int(ErrorCode.policy_violation), -1)
        before = state.next_offset if request.before_offset == -1 else request.before_offset
        if not 0 <= before <= state.next_offset:
            return DeletedRecords(int(ErrorCode.offset_out_of_range), -1)
        await self.remove_front(request.partition_id, before)
        return DeletedRecords(0, state.log_start_offset)

    async def remove_front(self, partition_id: int, before_offset: int) -> int:
        """Move the log start up to `before_offset`, and drop extents below it.

        Only extents that lie wholly below it are dropped. Returns how many.
        """
        removed_count = 0
        while True:
            async with self._state_lock:
                state = self._catalog.partitions.get(partition_id)
                if state is None:
                    return removed_count
                start = max(state.log_start_offset, min(before_offset, state.next_offset))
                await self._recent.settle([partition_id])
                size_bytes = state.size_bytes
                now_ms = self._clock.wall_ms()

                def write(
                    tx: Transaction, start: int = start, size: int = size_bytes, now: int = now_ms
                ) -> tuple[int, int]:
                    removed, removed_bytes = drop_extents(tx, partition_id, start, now)
                    drop_aborted(tx, partition_id, start)
                    tx.execute(
                        "UPDATE partitions SET log_start_offset = ?, size_bytes = ? WHERE partition_id = ?",
                        (start, size - removed_bytes, partition_id),
                    )
                    return removed, removed_bytes

                removed, removed_bytes = await self._metadata.plan(write)
                if removed or start != state.log_start_offset:
                    state.log_start_offset = start
                    state.size_bytes -= removed_bytes
                    state.discard_plan()
                    self._feed.publish([BoundsChanged(state.bounds)])
            removed_count += removed
            if removed < EXTENTS_PER_REMOVAL_MAX:
                return removed_count


def drop_extents(tx: Transaction, partition_id: int, end_offset: int | None, now_ms: int) -> tuple[int, int]:
    """Drop a partition's oldest extents that end at or below `end_offset`.

    Any extent may go if that is None. A call drops a bounded number of them.

    Objects without references are marked with the time. Returns how many extents and bytes were dropped.
    """
    rows = tx.query(
        "SELECT base_offset, end_offset, object_number, length FROM extents WHERE partition_id = ?"
        " ORDER BY base_offset LIMIT ?",
        (partition_id, EXTENTS_PER_REMOVAL_MAX),
    )
    if end_offset is not None:
        rows = [row for row in rows if row[1] <= end_offset]
    if not rows:
        return 0, 0
    tx.execute("DELETE FROM extents WHERE partition_id = ? AND base_offset <= ?", (partition_id, rows[-1][0]))
    unreference(tx, Counter(row[2] for row in rows), now_ms)
    return len(rows), sum(row[3] for row in rows)


def unreference(tx: Transaction, counts: Mapping[int, int], now_ms: int) -> None:
    """Note that so many extents of each object are gone.

    Objects without references are marked with the time.
    """
    tx.executemany(
        "UPDATE objects SET live_count = live_count - ? WHERE number = ?",
        [(count, number) for number, count in counts.items()],
    )
    tx.executemany(
        "UPDATE objects SET unreferenced_ms = ? WHERE number = ? AND live_count = 0",
        [(now_ms, number) for number in counts],
    )


def _nothing(tx: Transaction) -> None:
    """Read nothing: only the fencing epoch is checked."""


def _read_bounds(tx: Transaction, partition_id: int) -> PartitionBounds | None:
    rows = tx.query(
        "SELECT partition_id, log_start_offset, next_offset, size_bytes FROM partitions"
        " WHERE partition_id = ? AND removed_ms IS NULL",
        (partition_id,),
    )
    return PartitionBounds(*rows[0]) if rows else None


def _pair(row: Row) -> _Pair:
    return IndexedExtent(*row[:9]), StoredObject(row[3], row[9] or "", row[10] or 0)


def _end_offset(extent: IndexedExtent) -> int:
    return extent.end_offset


def _latest_ms(pair: _Pair) -> int:
    return pair[0].timestamp_ms_max


def _extents_from(tx: Transaction, bounds: PartitionBounds, request: FindExtents, extents_max: int) -> list[_Pair]:
    partition_id = bounds.partition_id
    offset = max(request.offset, bounds.log_start_offset)
    holding = tx.query(
        "SELECT base_offset, end_offset FROM extents WHERE partition_id = ? AND base_offset <= ?"
        " ORDER BY base_offset DESC LIMIT 1",
        (partition_id, offset),
    )
    next_offset = holding[0][0] if holding and holding[0][1] > offset else offset
    found: list[_Pair] = []
    bytes_left = request.bytes_max
    extents_left = extents_max
    while extents_left > 0:
        page = tx.query(
            f"SELECT {_COLUMNS} {_FROM} WHERE e.partition_id = ? AND e.base_offset >= ? ORDER BY e.base_offset LIMIT ?",
            (partition_id, next_offset, min(extents_left, _ROWS_PER_QUERY)),
        )
        for row in page:
            found.append(_pair(row))
            bytes_left -= row[5]
            if bytes_left <= 0:
                return found
        if len(page) < _ROWS_PER_QUERY:
            return found
        extents_left -= len(page)
        next_offset = page[-1][2]
    return found


def _extent_at(tx: Transaction, partition_id: int, timestamp_ms: int, from_offset: int) -> list[_Pair]:
    if timestamp_ms == -1:
        rows = tx.query(
            f"SELECT {_COLUMNS} {_FROM} WHERE e.partition_id = ? AND e.end_offset > ?"
            " ORDER BY e.timestamp_ms_max DESC, e.base_offset LIMIT 1",
            (partition_id, from_offset),
        )
        return [_pair(row) for row in rows]
    rows = tx.query(
        f"SELECT {_COLUMNS} {_FROM} WHERE e.partition_id = ? AND e.end_offset > ? AND e.timestamp_ms_max >= ?"
        " ORDER BY e.base_offset LIMIT 1",
        (partition_id, from_offset, timestamp_ms),
    )
    return [_pair(row) for row in rows]
