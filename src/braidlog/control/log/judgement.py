"""The judgement of one batch of an idempotent producer, packed into an int.

Every batch that the cluster writes is judged, so a judgement must not cost an object. These are the values:

    0                     APPENDED: the batch is next in line
    1 to 32767            refused: a Kafka error code
    APPENDED_LATE         appended, though batches after it were appended before
    APPENDED_BEHIND       appended, though batches of a later producer epoch were appended before
    HELD                  a batch before it is still missing
    negative              a duplicate: `duplicate_of` and `duplicate_offset` translate

Only the classic path refuses batches, and only the journal path holds them or appends them behind a later epoch.
"""

from typing import TypeAlias

Judgement: TypeAlias = int

APPENDED = 0
APPENDED_LATE = 1 << 16
APPENDED_BEHIND = 2 << 16
HELD = 3 << 16

OFFSET_UNKNOWN = -1
"""The offset of a batch that was appended too long ago for anybody to remember where."""


def duplicate_of(offset: int) -> Judgement:
    """Judge a batch to be a duplicate of the one at this offset.

    The offset may be `OFFSET_UNKNOWN`.
    """
    return -2 - offset


def is_duplicate(judgement: Judgement) -> bool:
    return judgement < 0


def duplicate_offset(judgement: Judgement) -> int:
    """Return the offset of the batch that a duplicate repeats.

    It may be `OFFSET_UNKNOWN`.
    """
    return -2 - judgement
