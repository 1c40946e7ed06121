"""One task's read: extents out of the store, a few ahead of the decoder, as the batches that Spark takes."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.objects.store import Bytes, NotFound
from braidlog.records.aborted import AbortedTransaction
from braidlog.records.arrow import iter_decoded
from braidlog.records.opened import ExtentBytes
from braidlog.spark.errors import DataLoss, told_to_people, warn
from braidlog.spark.index import LogIndex
from braidlog.spark.link import Link
from braidlog.spark.planning import LogSlice, Piece

AHEAD_BYTES_MAX = 32 * 1024 * 1024
AHEAD_COUNT_MAX = 16
LOOKS_MAX = 5
"""How often the index is looked at again without getting any further."""


class SliceReader:
    """Reads one slice. Where an object is gone, it was merged, compacted or expired: the index is asked again."""

    def __init__(self, link: Link, wanted: LogSlice, *, fail_on_data_loss: bool, columns: Sequence[str]) -> None:
        self._link = link
        self._wanted = wanted
        self._fail_on_data_loss = fail_on_data_loss
        self._columns = columns
        self._next_offset = wanted.start_offset
        self._gone: Piece | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        wanted = self._wanted
        pieces: Sequence[Piece] = wanted.pieces
        looks = 0
        with told_to_people(f"{wanted.topic}-{wanted.partition}"):
            while pieces:
                start_offset = self._next_offset
                yield from iter_decoded(
                    self._fetched(pieces),
                    topic=wanted.topic,
                    partition=wanted.partition,
                    start_offset=start_offset,
                    end_offset=wanted.end_offset,
                    columns=self._columns,
                    aborted=[AbortedTransaction(*each) for each in wanted.aborted],
                )
                if self._gone is None:
                    return
                looks = looks + 1 if self._next_offset == start_offset else 0
                pieces = self._look_again(self._gone, looks)

    def _fetched(self, pieces: Sequence[Piece]) -> Iterator[ExtentBytes]:
        """The extents in their order. Ends early, with `_gone`, where one is not there."""
        self._gone = None
        store = self._link.run(self._link.store())
        ahead: deque[tuple[Piece, Future[Bytes]]] = deque()
        ahead_bytes = 0
        waiting = iter(pieces)
        upcoming = next(waiting, None)
        try:
            while ahead or upcoming is not None:
                while upcoming is not None and (
                    not ahead or (ahead_bytes + upcoming.length <= AHEAD_BYTES_MAX and len(ahead) < AHEAD_COUNT_MAX)
                ):
                    end = upcoming.position + upcoming.length
                    ahead.append((upcoming, self._link.start(store.get_range(upcoming.key, upcoming.position, end))))
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
        bounds, pieces = self._link.run(
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
                    message, help='Keep them for longer (retention.ms), or option("failOnDataLoss", "false").'
                )
            warn(message)
            self._next_offset = lost_end
        elif looks >= LOOKS_MAX:
            raise DataLoss(
                f"the index names {gone.key}, which is not in the store",
                help="Is this the store that the control plane uses? braid doctor compares the two.",
            )
        return pieces
