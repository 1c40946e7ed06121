"""A draft's requests as the bytes of one object. Pure but for the names it is given."""

from operator import itemgetter

from braidlog.objects.format import encode_footer, encode_trailer
from braidlog.objects.layout import KAFKA_BATCHES, ExtentEntry, Footer
from braidlog.objects.store import Bytes
from braidlog.writing.request import Draft


def pack(draft: Draft, *, nonce: bytes, write_epoch: int, incarnation: str, created_ms: int, zone: str) -> None:
    """Fill in the draft's `packed` bytes and `footer`, and put its groups into the footer's order.

    The one copy on the write path is here: record bytes go from the frames they arrived in to one contiguous buffer.
    """
    pieces: list[Bytes] = []
    extents: list[ExtentEntry] = []
    position = 0
    draft.groups = dict(sorted(draft.groups.items(), key=itemgetter(0)))
    for (topic_id, partition), requests in draft.groups.items():
        entries = [request.entry for request in requests]
        length = sum(entry.length for entry in entries)
        extents.append(
            ExtentEntry(
                topic_id,
                partition,
                position,
                length,
                sum(entry.offset_count for entry in entries),
                min(request.timestamp_ms_min for request in requests),
                max(entry.timestamp_ms_max for entry in entries),
                KAFKA_BATCHES,
                entries,
            )
        )
        pieces.extend(request.records for request in requests)
        position += length
    draft.footer = encode_footer(Footer(nonce, write_epoch, incarnation, created_ms, zone, extents))
    pieces.append(draft.footer)
    pieces.append(encode_trailer(draft.footer, nonce))
    draft.packed = b"".join(pieces)
    for requests in draft.groups.values():
        for request in requests:
            request.records = b""  # the frame that it was a view of can go
