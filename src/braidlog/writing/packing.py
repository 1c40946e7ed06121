"""Packs a draft's requests into the bytes of one object."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter, itemgetter

from braidlog.objects.format import encode_footer, encode_trailer
from braidlog.objects.layout import KAFKA_BATCHES, ExtentEntry, Footer
from braidlog.objects.store import Bytes
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.writing.arena import Arena
from braidlog.writing.request import Draft

PIECE_BYTES_MIN = 8 * 1024
"""Pieces smaller than this on average are joined in one go: copying each by itself would cost more than the bytes."""
ARENA_BYTES_MIN = 64 * 1024

# There may be thousands of requests in an object, and these take half the time of a loop.
_entry, _records, _timestamp_ms_min = attrgetter("entry"), attrgetter("records"), attrgetter("timestamp_ms_min")
_length, _offset_count, _timestamp_ms_max = map(attrgetter, ("length", "offset_count", "timestamp_ms_max"))


@dataclass(frozen=True, slots=True)
class Writer:
    """The process that writes objects, as its objects name it."""

    incarnation: str
    zone: str
    write_epoch: Callable[[], int]
    """The newest that the control plane has handed out; -1: none yet."""


class Packer:
    """Makes an object of each draft, in memory that is used again."""

    def __init__(self, writer: Writer, arena: Arena, clock: Clock, entropy: Entropy) -> None:
        self.writer = writer
        self._arena = arena
        self._clock = clock
        self._entropy = entropy

    def pack(self, draft: Draft, write_epoch: int) -> None:
        """Fill in the draft's `packed` bytes and `footer`.

        Its partitions are sorted as the footer lists them.

        The one copy on the write path is here: record bytes go from the frames they arrived in to one contiguous
        buffer.
        """
        nonce = self._entropy.token(16)
        pieces: list[Bytes] = []
        extents: list[ExtentEntry] = []
        position = 0
        draft.partitions = dict(sorted(draft.partitions.items(), key=itemgetter(0)))
        for (topic_id, partition), requests in draft.partitions.items():
            entries = list(map(_entry, requests))
            length = sum(map(_length, entries))
            extents.append(
                ExtentEntry(
                    topic_id,
                    partition,
                    position,
                    length,
                    sum(map(_offset_count, entries)),
                    min(map(_timestamp_ms_min, requests)),
                    max(map(_timestamp_ms_max, entries)),
                    KAFKA_BATCHES,
                    entries,
                )
            )
            pieces.extend(map(_records, requests))
            position += length
        writer = self.writer
        footer = Footer(nonce, write_epoch, writer.incarnation, self._clock.wall_ms(), writer.zone, extents)
        draft.footer = encode_footer(footer)
        pieces.append(draft.footer)
        pieces.append(encode_trailer(draft.footer, nonce))
        draft.packed = self._joined(pieces)
        for requests in draft.partitions.values():
            for request in requests:
                request.records = b""  # the frame that it was a view of can go

    def _joined(self, pieces: list[Bytes]) -> Bytes:
        size_bytes = sum(map(len, pieces))
        if size_bytes < max(ARENA_BYTES_MIN, PIECE_BYTES_MIN * len(pieces)):
            return b"".join(pieces)
        whole = self._arena.take(size_bytes)
        position = 0
        for piece in pieces:
            end = position + len(piece)
            whole[position:end] = piece
            position = end
        return whole.toreadonly()
