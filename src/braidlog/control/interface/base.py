"""The base of all messages."""

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True):
    """Base of all requests, answers and events. Fields are only ever added at the end."""
