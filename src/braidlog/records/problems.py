"""Problems in batches and records, as numbers that compiled loops return."""

from enum import IntEnum

from kio.schema.errors import ErrorCode

from braidlog.records.errors import InvalidBatch


class Problem(IntEnum):
    NONE = 0
    TRAILING_BYTES = 1
    BATCH_LENGTH = 2
    MAGIC = 3
    CODEC = 4
    OFFSETS = 5
    RECORD_COUNT = 6
    RECORD_LENGTH = 7
    CUT_OFF = 8
    OFFSET_DELTA = 9
    FIELD_LENGTH = 10
    HEADER_COUNT = 11
    HEADER_NAME = 12
    TIMESTAMP = 13
    BYTES_BEHIND = 14


PROBLEM_TEXT = {
    Problem.TRAILING_BYTES: "bytes behind the last batch",
    Problem.BATCH_LENGTH: "a batch's length does not fit the bytes at hand",
    Problem.MAGIC: "record batches must have magic 2",
    Problem.CODEC: "unknown compression codec",
    Problem.OFFSETS: "a batch's offsets are not within its extent",
    Problem.RECORD_COUNT: "a batch's record count does not fit its bytes",
    Problem.RECORD_LENGTH: "a record's length does not fit its bytes",
    Problem.CUT_OFF: "a record is cut off",
    Problem.OFFSET_DELTA: "an offset delta is not within its batch",
    Problem.FIELD_LENGTH: "a field is longer than its record",
    Problem.HEADER_COUNT: "a record's number of headers does not fit its bytes",
    Problem.HEADER_NAME: "a record header without a name",
    Problem.TIMESTAMP: "a record's timestamp is out of range",
    Problem.BYTES_BEHIND: "bytes behind the last record of a batch",
}

_CODES = {
    Problem.TRAILING_BYTES: ErrorCode.corrupt_message,
    Problem.BATCH_LENGTH: ErrorCode.corrupt_message,
    Problem.CODEC: ErrorCode.unsupported_compression_type,
    Problem.OFFSETS: ErrorCode.corrupt_message,
}


def invalid(problem: int, detail: str) -> InvalidBatch:
    """Return the error for a problem."""
    known = Problem(problem)
    return InvalidBatch(_CODES.get(known, ErrorCode.invalid_record), f"{PROBLEM_TEXT[known]} ({detail})")
