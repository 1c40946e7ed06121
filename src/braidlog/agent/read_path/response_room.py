"""Shares a fetch response's bytes among its partitions.

It goes in the order of the request, as Kafka does.
"""


class ResponseRoom:
    """The bytes of records that a response may still take.

    Only the first partition with records may exceed its share, by a single batch. Without that exception, a consumer
    could not get past a batch that is larger than its limits. With more exceptions, a response would have no limit.
    """

    def __init__(self, bytes_max: int) -> None:
        self._left_bytes = bytes_max
        self.taken_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self.taken_bytes

    def share(self, partition_bytes_max: int) -> int:
        """How many bytes the next partition may have.

        A limit of 0 counts as 1, so that a consumer gets on.
        """
        return min(max(partition_bytes_max, 1), self._left_bytes)

    def takes(self, size_bytes: int) -> bool:
        """Take the bytes of a partition if they fit. Returns whether they do."""
        if size_bytes > self._left_bytes and self.taken_bytes:
            return False
        self.taken_bytes += size_bytes
        self._left_bytes = max(0, self._left_bytes - size_bytes)
        return True
