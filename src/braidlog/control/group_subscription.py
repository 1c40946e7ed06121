"""The topics in a consumer's subscription: what members of a `consumer` group send as their protocol metadata.

All versions start the same way: version (int16), then an array (int32 count) of names (int16 length, UTF-8). What
follows is of no interest here, and members may be newer than this code, so it is not looked at.
"""

import struct

CONSUMER_PROTOCOL_TYPE = "consumer"

_INT16 = struct.Struct(">h")
_HEADER = struct.Struct(">hi")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topic names, or None where the bytes are not a subscription. Never raises: members send what they like."""
    if len(metadata) < _HEADER.size:
        return None
    version, count = _HEADER.unpack_from(metadata)
    position = _HEADER.size
    # Each name takes two bytes at least: a count beyond that is refused before anything is built from it.
    if version < 0 or not 0 <= count <= (len(metadata) - position) // _INT16.size:
        return None
    topics = set()
    for _ in range(count):
        if len(metadata) - position < _INT16.size:
            return None
        (length,) = _INT16.unpack_from(metadata, position)
        position += _INT16.size
        if not 0 <= length <= len(metadata) - position:
            return None
        try:
            topics.add(metadata[position : position + length].decode())
        except UnicodeDecodeError:
            return None
        position += length
    return frozenset(topics)
