"""Whose turn it is to upload what a group holds. Members take turns, so that no shard's CPU carries the others' uploads
for long."""

from collections.abc import Sequence


def holder(shards: Sequence[int], turn: int) -> int:
    """Round robin over a group's members. `turn` counts the group's uploads, and may start anywhere."""
    return shards[turn % len(shards)]


def may_take_turn(
    shard: int, turn_holder: int, *, now_s: float, oldest_s: float, interval_s: float, turn_s: float
) -> bool:
    """Whether the shard may pull now. A holder may always; the others when it has let the oldest request of the group
    wait for `turn_s` longer than the interval, as one that has died or hangs would. The group's lock decides between
    several.

    `turn_s` is how long a holder may take to notice that it has the turn.
    """
    return shard == turn_holder or now_s >= oldest_s + interval_s + turn_s


def takeover_s(oldest_s: float, interval_s: float, turn_s: float) -> float:
    """When members other than the holder should look again."""
    return oldest_s + interval_s + turn_s
