"""Request and response headers, and the frames around them."""

import struct
from struct import Struct
from typing import NamedTuple

from braidlog.wire.errors import MalformedRequest
from braidlog.wire.primitives import read_tags, truncated

API_VERSIONS_KEY = 18

_NEVER = 1 << 15
_FLEXIBLE_FROM = {
    **dict.fromkeys((45, 46, 50, 51, 52, 55, *range(57, 76), *range(80, 93)), 0),
    **dict.fromkeys((27, 44, 48, 49, 53, 54, 76, 77, 78, 79), 1),
    **dict.fromkeys((21, 22, *range(29, 32), *range(33, 44), 56), 2),
    **dict.fromkeys((10, 16, 18, 24, 25, 26, 28), 3),
    **dict.fromkeys((12, 13, 14, 20, 23, 32), 4),
    **dict.fromkeys((15, 19), 5),
    **dict.fromkeys((2, 9, 11), 6),
    8: 8,
    **dict.fromkeys((0, 3), 9),
    1: 12,
    **dict.fromkeys((17, 47), _NEVER),
}
"""Per API key, the first version with compact lengths and tagged fields."""

_FIXED = Struct(">hhih")
"""API key, API version, correlation id, length of the client id."""
_I32 = Struct(">i")
_LENGTH_AND_ID = Struct(">ii")


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    """Empty where the client sent null."""
    body_position: int
    """The start of the body in the frame."""


def is_flexible(api_key: int, api_version: int) -> bool:
    """Whether this version has compact lengths and tagged fields.

    Unknown keys count as not flexible.
    """
    return api_version >= _FLEXIBLE_FROM.get(api_key, _NEVER)


def read_request_header(frame: memoryview) -> RequestHeader:
    """Read the header at the start of a frame, which comes without its length prefix.

    An unknown version is read like the newest one, so that ApiVersions can be answered whatever the client asked for.
    The caller decides what to do about unknown keys and versions.
    """
    try:
        api_key, api_version, correlation_id, client_id_bytes = _FIXED.unpack_from(frame, 0)
    except struct.error:
        raise truncated() from None
    position = 10
    client_id = ""
    if client_id_bytes > 0:
        position += client_id_bytes
        if position > len(frame):
            raise truncated()
        try:
            client_id = str(frame[10:position], "utf-8")
        except UnicodeDecodeError:
            raise MalformedRequest("the client id is not UTF-8") from None
    elif client_id_bytes < -1:
        raise MalformedRequest(f"a client id of {client_id_bytes} bytes")
    if api_version >= _FLEXIBLE_FROM.get(api_key, _NEVER):
        if position < len(frame) and frame[position] == 0:
            position += 1
        else:
            position = read_tags(frame, position)
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def has_flexible_response_header(api_key: int, api_version: int) -> bool:
    """Whether the response header has tagged fields.

    ApiVersions is the exception: a client reads its answer before it knows the broker's versions.
    """
    return api_key != API_VERSIONS_KEY and is_flexible(api_key, api_version)


def response_header(correlation_id: int, flexible: bool) -> bytes:
    """Write the header alone; `flexible` is what `has_flexible_response_header` says."""
    return _I32.pack(correlation_id) + b"\x00" if flexible else _I32.pack(correlation_id)


def frame_start(correlation_id: int, flexible: bool, body_bytes: int) -> bytes:
    """Write the length prefix and header of a response.

    Its body has `body_bytes`.
    """
    if flexible:
        return _LENGTH_AND_ID.pack(body_bytes + 5, correlation_id) + b"\x00"
    return _LENGTH_AND_ID.pack(body_bytes + 4, correlation_id)
