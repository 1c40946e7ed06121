"""When a group splits, and when two merge.

**Split.** A group is split in half when more waits in its batcher than twice the upload size for each of its shards:
enough to fill the streams that it could become. A large group would gather hundreds of megabytes until then, and at a
load that is just too much for one stream its producers would wait for seconds. So it is also split when all slots are
taken, requests have waited for the whole window, and there are enough of them to fill a second stream's slots at once.
And it is split when as much arrives as would fill an object for each of its shards within the interval: as many streams
as shards then make no more PUTs than one, and nothing has to go from shard to shard.

**Merge.** Two buddies merge when nothing is due in either, and the upload slots that both have used lately leave one
stream room to spare. Bytes that merely gather towards size or interval while slots are free are no backlog: with them,
a trickle would never merge. The second condition keeps middle loads calm. Where two streams are half busy, both are
often without any backlog, but one in their place would soon have one, and they would split and merge for ever. The use
is an average over time, not a peak: PUTs have a long tail, so a peak says more about the slowest of them than about the
load. Under steady loads, the model of 32 shards (`bench/scheduler.py`) regroups about once a second by peaks, and
hardly ever by averages. Besides, less must arrive than half of what would split the two again.

A window separates the decisions of a group, and a merge respects the buddy's window too. Only a group's first shard
decides, and only the lower buddy merges, so that two shards never change the same entries of the map.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from braidlog.scheduling.groups import buddy, halves, members
from braidlog.scheduling.loads import GroupLoad, ShardLoad, group_load

MERGE_SLOTS_SHARE = 0.6
"""Of one stream's slots: two groups that use no more together may merge. At 0.7, loads that fill a stream by
three quarters split and merge by turns; at 0.5, groups stay apart that one stream would carry well."""

MERGE_RATE_SHARE = 0.5
"""Of the rate at which a group of both would split."""


@dataclass(frozen=True, slots=True)
class RegroupThresholds:
    size_bytes: int
    """Of an upload, as in `CloseThresholds`."""
    interval_s: float
    in_flight_max: int
    """Upload slots of one stream, that is, of one group."""
    backlog_bytes_per_shard_max: int = 1 << 62
    """Where memory for the backlog is scarce, a group must split before it runs out: say, half of what a shard has."""

    @property
    def window_s(self) -> float:
        """The least time between two decisions of a group."""
        return 2 * self.interval_s

    @property
    def memory_s(self) -> float:
        """How far back the use of upload slots is averaged: many uploads long, so that a slow one does not matter."""
        return 8 * self.interval_s

    def full_bytes_per_s(self, member_count: int) -> float:
        """What fills an object for each of so many shards within the interval."""
        return member_count * self.size_bytes / self.interval_s

    def split_bytes(self, member_count: int) -> int:
        return min(2 * self.size_bytes, self.backlog_bytes_per_shard_max) * member_count


@dataclass(frozen=True, slots=True)
class Split:
    """`upper` leaves its group and becomes one of its own, named after its first shard."""

    group: int
    upper: range


@dataclass(frozen=True, slots=True)
class Merge:
    """`absorbed` joins its lower buddy."""

    group: int
    absorbed: range


@dataclass(frozen=True, slots=True)
class Standing:
    """How things stand when a shard looks at its group."""

    groups: Sequence[int]
    loads: Sequence[ShardLoad]
    """By shard, of all shards."""
    decided_s: Sequence[float]
    """By group id, when the group was last made or changed: a split writes it for both halves, a merge for the group
    that stays."""
    now_s: float


def decide_regroup(thresholds: RegroupThresholds, standing: Standing, shard: int) -> Split | Merge | None:
    """What the shard should do to its group now."""
    groups, loads, decided_s, now_s = standing.groups, standing.loads, standing.decided_s, standing.now_s
    if groups[shard] != shard or now_s - decided_s[shard] < thresholds.window_s:
        return None
    memory_s = thresholds.memory_s
    own = group_load(loads, members(groups, shard), now_s=now_s, memory_s=memory_s)
    parts = halves(groups, shard)
    if parts is not None and _needs_split(thresholds, own, now_s):
        return Split(shard, parts[1])
    other = buddy(groups, shard)
    if other is None or other < shard or now_s - decided_s[other] < thresholds.window_s:
        return None
    absorbed = members(groups, other)
    if _fit_one_stream(thresholds, own, group_load(loads, absorbed, now_s=now_s, memory_s=memory_s)):
        return Merge(shard, absorbed)
    return None


def _needs_split(thresholds: RegroupThresholds, load: GroupLoad, now_s: float) -> bool:
    if load.backlog_bytes > thresholds.split_bytes(load.member_count):
        return True
    if load.bytes_per_s >= thresholds.full_bytes_per_s(load.member_count):
        return True
    return (
        load.in_flight >= thresholds.in_flight_max
        and load.backlog_bytes > thresholds.size_bytes * thresholds.in_flight_max
        and now_s - load.oldest_s > thresholds.window_s
    )


def _fit_one_stream(thresholds: RegroupThresholds, lower: GroupLoad, upper: GroupLoad) -> bool:
    return (
        lower.backlog_bytes + upper.backlog_bytes < thresholds.size_bytes
        and lower.slots_used + upper.slots_used <= MERGE_SLOTS_SHARE * thresholds.in_flight_max
        and lower.bytes_per_s + upper.bytes_per_s
        < MERGE_RATE_SHARE * thresholds.full_bytes_per_s(lower.member_count + upper.member_count)
    )
