"""A request for a range of an object, between the processes of a zone."""

import msgspec

from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.limits import OBJECT_BYTES_MAX


class Range(msgspec.Struct, array_like=True, frozen=True):
    """The bytes [start, end) of an object of `object_size` bytes."""

    key: str
    object_size: int
    start: int
    end: int


encode_range = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Range).decode


def decode_range(body: bytes) -> Range:
    """Decode a request, and refuse one that no object can answer."""
    try:
        asked = _decode(body)
    except msgspec.MsgspecError as error:
        raise InvalidSetting(f"a request for a range is not understood: {error}") from error
    if not 0 <= asked.start < asked.end <= asked.object_size:
        raise InvalidSetting(f"there are no bytes [{asked.start}, {asked.end}) in {asked.object_size}")
    if asked.end - asked.start > OBJECT_BYTES_MAX:
        raise InvalidSetting(f"{asked.end - asked.start} bytes are more than any object has")
    return asked
