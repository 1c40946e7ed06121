"""What can be wrong with a frame."""


class MalformedRequest(Exception):  # noqa: N818 - named by what the peer sent
    """A frame that is not the message its header promises. Kafka closes such connections, and so do we."""
