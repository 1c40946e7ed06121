"""Decides which member of a shard group pulls.

Members take turns, so that no shard does the others' work for long.
"""

from collections.abc import Sequence


def next_puller(shards: Sequence[int], pull_count: int) -> int:
    """Go round a group's members.

    `pull_count` counts the group's pulls, and may start anywhere.
    """
    return shards[pull_count % len(shards)]


def may_pull(shard: int, puller: int, *, now_s: float, oldest_s: float, interval_s: float, grace_s: float) -> bool:
    """Whether the shard may pull now.

    The puller always may. The others may if it has let the group's oldest request wait `grace_s` longer than the
    interval, as a shard that has died or hangs would. The group's lock decides between several.

    `grace_s` is how long a puller may take to notice that it is the puller.
    """
    return shard == puller or now_s >= oldest_s + interval_s + grace_s


def takeover_s(oldest_s: float, interval_s: float, grace_s: float) -> float:
    """Return when members other than the puller may pull."""
    return oldest_s + interval_s + grace_s
