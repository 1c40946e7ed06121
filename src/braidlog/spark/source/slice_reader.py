"""Reads the slices of one task.

It fetches extents ahead of the decoder, and yields Arrow batches.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.objects.store import Bytes, NotFound
from braidlog.records.aborted import AbortedTransaction
from braidlog.records.arrow import PartitionRange, iter_decoded
from braidlog.records.opened_extents import ExtentBytes
from braidlog.spark.errors import DataLoss, readable_errors, warn
from braidlog.spark.link import Link
from braidlog.spark.source.index import LogIndex
from braidlog.spark.source.planning import LogSlice, ObjectRange, Piece, join_pieces

AHEAD_BYTES_MAX = 32 * 1024 * 1024
AHEAD_COUNT_MAX = 16
GAP_BYTES_MAX = 64 * 1024
"""Reading this many unneeded bytes costs less than another request."""
LOOKS_MAX = 5
"""How often the index is asked again without any progress."""


class Fetcher:
    """Fetches pieces of objects.

    One request fetches pieces that lie close together in one object.

    This matters when one task reads many partitions: an agent's objects have a little of each, side by side.
    """

    def __init__(self, link: Link, slices: Sequence[LogSlice]) -> None:
        self._link = link
        # A task with one slice reads every object once anyway.
        shared = [piece for each in slices for piece in each.pieces] if len(slices) > 1 else []
        self._ranges = join_pieces(shared, gap_bytes_max=GAP_BYTES_MAX)
        self._begun: dict[ObjectRange, asyncio.Task[Bytes]] = {}

    def start(self, piece: Piece) -> "Future[Bytes]":
        return self._link.loop.start(self._get(piece))

    async def _get(self, piece: Piece) -> Bytes:
        store = await self._link.store()
        wide = self._ranges.get(piece)
        if wide is None:
            return await store.get_range(piece.key, piece.position, piece.position + piece.length)
        begun = self._begun.get(wide)
        if begun is None:
            begun = self._begun[wide] = asyncio.ensure_future(store.get_range(*wide))
        data = memoryview(await asyncio.shield(begun))
        return data[piece.position - wide.start : piece.position - wide.start + piece.length]


class SliceReader:
    """Reads one slice.

    If an object is gone, it was merged, compacted or expired, and the index is asked again.
    """

    def __init__(
        self, link: Link, fetcher: Fetcher, wanted: LogSlice, *, fail_on_data_loss: bool, columns: Sequence[str]
    ) -> None:
        self._link = link
        self._fetcher = fetcher
        self._wanted = wanted
        self._fail_on_data_loss = fail_on_data_loss
        self._columns = columns
        self._next_offset = wanted.start_offset
        self._gone: Piece | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        wanted = self._wanted
        pieces: Sequence[Piece] = wanted.pieces
        looks = 0
        with readable_errors(f"{wanted.topic}-{wanted.partition}"):
            while pieces:
                start_offset = self._next_offset
                yield from iter_decoded(
                    self._fetched(pieces),
                    PartitionRange(wanted.topic, wanted.partition, start_offset, wanted.end_offset),
                    columns=self._columns,
                    aborted=[AbortedTransaction(*each) for each in wanted.aborted],
                )
                if self._gone is None:
                    return
                looks = looks + 1 if self._next_offset == start_offset else 0
                pieces = self._look_again(self._gone, looks)

    def _fetched(self, pieces: Sequence[Piece]) -> Iterator[ExtentBytes]:
        """Yield the extents in order. Ends early and sets `_gone` if one does not exist."""
        self._gone = None
        ahead: deque[tuple[Piece, Future[Bytes]]] = deque()
        ahead_bytes = 0
        waiting = iter(pieces)
        upcoming = next(waiting, None)
        try:
            while ahead or upcoming is not None:
                while upcoming is not None and (
                    not ahead or (ahead_bytes + upcoming.length <= AHEAD_BYTES_MAX and len(ahead) < AHEAD_COUNT_MAX)
                ):
                    ahead.append((upcoming, self._fetcher.start(upcoming)))
                    ahead_bytes += upcoming.length
                    upcoming = next(waiting, None)
                piece, coming = ahead.popleft()
                ahead_bytes -= piece.length
                try:
                    data = coming.result()
                except NotFound:
                    self._gone = piece
                    return
                yield ExtentBytes(piece.base_offset, data, piece.end_offset)
                self._next_offset = min(piece.end_offset, self._wanted.end_offset)
        finally:
            for _, coming in ahead:
                coming.cancel()

    def _look_again(self, gone: Piece, looks: int) -> list[Piece]:
        wanted = self._wanted
        start_offset = self._next_offset
        bounds, pieces = self._link.loop.run(
            LogIndex(self._link).pieces(wanted.partition_id, start_offset, wanted.end_offset)
        )
        if bounds.log_start_offset > start_offset:
            lost_end = min(bounds.log_start_offset, wanted.end_offset)
            message = (
                f"records {start_offset} to {lost_end - 1} of {wanted.topic}-{wanted.partition} expired or were"
                " deleted before they were read"
            )
            if self._fail_on_data_loss:
                raise DataLoss(
                    message, help='Keep records for longer (retention.ms), or use option("failOnDataLoss", "false").'
                )
            warn(message)
            self._next_offset = lost_end
        elif looks >= LOOKS_MAX:
            raise DataLoss(
                f"the index names {gone.key}, which is not in the store",
                help="Check that this is the control plane's store. braid doctor compares the two.",
            )
        return pieces
