"""What is wrong with a record batch, in Kafka's own terms."""

from kio.schema.errors import ErrorCode


class InvalidBatch(Exception):
    """A record batch that cannot be accepted. `error_code` is what Kafka would answer for it."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message


class RecordsTooLarge(InvalidBatch):
    """The records do not fit in the bytes that they may take, which is found out without making more of them."""
