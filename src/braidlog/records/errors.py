"""Errors of record batches, with Kafka's error codes."""

from collections.abc import Sequence

from kio.schema.errors import ErrorCode


class InvalidBatch(Exception):
    """A record batch that cannot be accepted.

    `error_code` is what Kafka would answer for it.
    """

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message


class BadRecords(InvalidBatch):
    """A batch that would be accepted without some of its records."""

    def __init__(self, error_code: ErrorCode, message: str, places: Sequence[int], reason: str) -> None:
        """`places` are the positions of the bad records in their batch.

        `reason` says what is wrong with each.
        """
        super().__init__(error_code, message)
        self.places = places
        self.reason = reason


class RecordsTooLarge(InvalidBatch):
    """The records exceed the bytes that they may take.

    No more than that was ever allocated.
    """
