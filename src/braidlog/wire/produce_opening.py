"""The opening of a producer's requests: parsed once, and then only compared.

A producer sends the same bytes in front of its records again and again: its client id, acks, the timeout, the topic's
name. In a request for one partition, only the correlation id, the partition's index and the records are new. So a
request with the same opening as the one before it need not be parsed again.
"""

from struct import Struct
from typing import NamedTuple, TypeAlias

from braidlog.wire.header import RequestHeader
from braidlog.wire.primitives import count_of, nullable_string, read_uvarint, string
from braidlog.wire.produce import FLEXIBLE_FROM, IDS_FROM, KEY, ProduceRequest

_IDS = Struct(">hhi")
"""API key, API version, correlation id."""
_INDEX_AND_LENGTH = Struct(">ii")
_INDEX_AND_VARINT = Struct(">iBB")
"""A partition's index, and the first two bytes of the length, which suffice for most requests."""
_ACKS_TIMEOUT = bytes(6)
_END = b"\x00\x00\x00"
"""The end of a flexible request: no tagged fields of the partition, the topic and the request."""
_REST_BYTES_MIN = 8
"""The least size of a partition's index and its records."""


SingleProduce: TypeAlias = tuple[int, int, memoryview]
"""The rest of one request: correlation id, the partition's index, and its records as a view into the frame."""


class ProduceOpening(NamedTuple):
    """Everything in a frame before its only partition, except the correlation id."""

    version: int
    shared: bytes
    """The bytes between the correlation id and the partition's index."""
    name: str
    """Empty in version 13."""
    topic_id: bytes
    """Empty before version 13."""

    def read(self, frame: memoryview) -> SingleProduce | None:
        """Read the rest of `frame`; None if it has another opening or end.

        The frame comes without its length.
        """
        shared = self.shared
        position = len(shared) + _IDS.size
        size = len(frame)
        if size < position + _REST_BYTES_MIN or frame[8:position] != shared:
            return None
        key, version, correlation_id = _IDS.unpack_from(frame)
        if key != KEY or version != self.version:
            return None
        if version < FLEXIBLE_FROM:
            index, length = _INDEX_AND_LENGTH.unpack_from(frame, position)
            return (correlation_id, index, frame[position + 8 :]) if length == size - position - 8 else None
        index, length, more = _INDEX_AND_VARINT.unpack_from(frame, position)
        if length >= 0x80 > more:
            length = length & 0x7F | more << 7
            position += 6
        else:
            length, position = read_uvarint(frame, position + 4)
        end = position + length - 1
        # A length of 0 means no records at all.
        return (correlation_id, index, frame[position:end]) if length and frame[end:] == _END else None


def opening_of(frame: memoryview, header: RequestHeader, request: ProduceRequest) -> ProduceOpening | None:
    """Return the opening of the request in `frame`; None if such a request has none."""
    if request.transactional_id is not None or len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return None
    name, topic_id, ((index, records),) = request.topics[0]
    if records is None:
        return None
    version = header.api_version
    flexible = version >= FLEXIBLE_FROM
    topic = topic_id if version >= IDS_FROM else string(name, flexible)
    one = count_of(1, flexible)
    before_partition = (nullable_string(None, flexible), _ACKS_TIMEOUT, one, topic, one)
    end = header.body_position + sum(map(len, before_partition))
    opening = ProduceOpening(version, bytes(frame[8:end]), name, topic_id)
    found = opening.read(frame)
    # A number may be written with more bytes than it needs. Then the partition begins further on, and what is read here
    # is not what the request says: as both end with the frame, records of one length are the same.
    if found is None or (found[0], found[1], len(found[2])) != (header.correlation_id, index, len(records)):
        return None
    return opening
