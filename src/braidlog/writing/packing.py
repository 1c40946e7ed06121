"""A draft's requests as the bytes of one object. Pure but for the memory it is given."""

from operator import attrgetter, itemgetter

from braidlog.objects.format import encode_footer, encode_trailer
from braidlog.objects.layout import KAFKA_BATCHES, ExtentEntry, Footer
from braidlog.objects.store import Bytes
from braidlog.writing.arena import Arena
from braidlog.writing.request import Draft

PIECE_BYTES_MIN = 8 * 1024
"""Pieces smaller than this on average are joined in one go: copying each by itself would cost more than the bytes."""
ARENA_BYTES_MIN = 64 * 1024

# There may be thousands of requests in an object, and these take half the time of a loop.
_entry, _records, _timestamp_ms_min = attrgetter("entry"), attrgetter("records"), attrgetter("timestamp_ms_min")
_length, _offset_count, _timestamp_ms_max = map(attrgetter, ("length", "offset_count", "timestamp_ms_max"))


def pack(
    draft: Draft, arena: Arena, *, nonce: bytes, write_epoch: int, incarnation: str, created_ms: int, zone: str
) -> None:
    """Fill in the draft's `packed` bytes and `footer`, and put its groups into the footer's order.

    The one copy on the write path is here: record bytes go from the frames they arrived in to one contiguous buffer.
    """
    pieces: list[Bytes] = []
    extents: list[ExtentEntry] = []
    position = 0
    draft.groups = dict(sorted(draft.groups.items(), key=itemgetter(0)))
    for (topic_id, partition), requests in draft.groups.items():
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
    draft.footer = encode_footer(Footer(nonce, write_epoch, incarnation, created_ms, zone, extents))
    pieces.append(draft.footer)
    pieces.append(encode_trailer(draft.footer, nonce))
    draft.packed = _joined(arena, pieces)
    for requests in draft.groups.values():
        for request in requests:
            request.records = b""  # the frame that it was a view of can go


def _joined(arena: Arena, pieces: list[Bytes]) -> Bytes:
    size_bytes = sum(map(len, pieces))
    if size_bytes < max(ARENA_BYTES_MIN, PIECE_BYTES_MIN * len(pieces)):
        return b"".join(pieces)
    whole = arena.take(size_bytes)
    position = 0
    for piece in pieces:
        end = position + len(piece)
        whole[position:end] = piece
        position = end
    return whole.toreadonly()
