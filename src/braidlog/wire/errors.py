"""Errors of frames."""


class MalformedRequest(Exception):
    """A frame that is not the message its header promises.

    Kafka closes such connections, and so do we.
    """
