"""The limits of a compaction: its memory, and the size of its objects."""

from dataclasses import dataclass

from braidlog.records.opened_extents import DECOMPRESSED_BYTES_MAX

KEY_MAP_BYTES_MAX = 128 * 1024 * 1024
SLOT_BYTES = 24
"""What a key takes in a key map."""
FILL_MAX = 0.75
"""The share of a key map's slots that may be taken."""
OBJECT_BYTES_TARGET = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    key_map_bytes_max: int = KEY_MAP_BYTES_MAX
    """If the key map cannot hold all keys, the compaction ends early and another one continues."""
    object_bytes_target: int = OBJECT_BYTES_TARGET
    keep_bytes_min: int | None = None
    """Extents of at least this length from which nothing goes are not written again. None: all are written."""
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX


def key_count_max(bytes_max: int) -> int:
    """Return how many keys fit into a key map of this size in any case.

    While a map grows, its old slots take a part of the bytes.
    """
    return int(bytes_max // SLOT_BYTES // 2 * FILL_MAX)
