"""What shards tell each other of their load: plain counters, which each writes on its own cache line and all may read.

They are read without a lock, so a reader may see one shard's counters a moment older than another's. Nothing here
depends on more than that: a decision that was right a moment ago is never wrong, only late.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class ShardLoad:
    backlog_bytes: int = 0
    """Accepted by this shard and not yet pulled into an upload."""
    oldest_s: float = inf
    """When the oldest of these arrived."""
    uploads_in_flight: int = 0
    """That this shard has under way, for its whole group."""
    peak_in_flight: int = 0
    """The most that its *group* had under way when this shard started one: see `noted_peak`."""
    peak_s: float = -inf
    """When that was so last."""


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """The counters of some shards together: what the close decision and the regrouping look at."""

    member_count: int
    backlog_bytes: int
    oldest_s: float
    in_flight: int
    peak_in_flight: int
    """Within the window that was asked for; at least `in_flight`."""


def group_load(loads: Sequence[ShardLoad], shards: Iterable[int], *, peak_since_s: float = -inf) -> GroupLoad:
    """Peaks that were last seen before `peak_since_s` are forgotten."""
    member_count = backlog_bytes = in_flight = peak_in_flight = 0
    oldest_s = inf
    for shard in shards:
        load = loads[shard]
        member_count += 1
        backlog_bytes += load.backlog_bytes
        oldest_s = min(oldest_s, load.oldest_s)
        in_flight += load.uploads_in_flight
        if load.peak_s >= peak_since_s:
            peak_in_flight = max(peak_in_flight, load.peak_in_flight)
    return GroupLoad(member_count, backlog_bytes, oldest_s, in_flight, max(peak_in_flight, in_flight))


def noted_peak(load: ShardLoad, group_in_flight: int, *, now_s: float, window_s: float) -> tuple[int, float]:
    """The new `peak_in_flight` and `peak_s` of a shard that has just started an upload, after which its group has
    `group_in_flight` under way. A peak stands until a higher one or for the window, so that nobody has to reset it."""
    if group_in_flight >= load.peak_in_flight or now_s - load.peak_s > window_s:
        return group_in_flight, now_s
    return load.peak_in_flight, load.peak_s
