"""Decides when a shard group splits, and when two merge.

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

from braidlog.scheduling.loads import GroupLoad, ShardLoad, group_load
from braidlog.scheduling.shard_groups import buddy, halves, members

MERGE_SLOTS_SHARE = 0.6
"""The part of one stream's slots that two groups may use together to be merged. At 0.7, loads that fill three quarters
of a stream split and merge again and again; at 0.5, groups stay apart that one stream would carry well."""

MERGE_RATE_SHARE = 0.5
"""The part of the rate at which the merged group would split that may arrive for two groups to be merged."""


@dataclass(frozen=True, slots=True)
class RegroupThresholds:
    """The limits at which groups split and merge."""

    size_bytes: int
    """The size of an upload, as in `CloseThresholds`."""
    interval_s: float
    in_flight_max: int
    """Upload slots of one stream, that is, of one group."""
    backlog_bytes_per_shard_max: int = 1 << 62
    """The most backlog per shard before a group splits, so that it does not run out of shared memory."""

    @property
    def window_s(self) -> float:
        """The least time between two decisions of a group."""
        return 2 * self.interval_s

    @property
    def memory_s(self) -> float:
        """The time over which the use of upload slots is averaged.

        It is many uploads long, so a slow one does not matter.
        """
        return 8 * self.interval_s

    def full_bytes_per_s(self, member_count: int) -> float:
        """Return the rate that fills one object per member within the interval."""
        return member_count * self.size_bytes / self.interval_s

    def split_bytes(self, member_count: int) -> int:
        return min(2 * self.size_bytes, self.backlog_bytes_per_shard_max) * member_count


@dataclass(frozen=True, slots=True)
class Split:
    """`upper` leaves its group and becomes a group of its own.

    The group is named after its first shard.
    """

    group: int
    upper: range


@dataclass(frozen=True, slots=True)
class Merge:
    """`absorbed` joins its lower buddy."""

    group: int
    absorbed: range


@dataclass(frozen=True, slots=True)
class Standing:
    """Everything that a shard looks at before it changes its group."""

    groups: Sequence[int]
    loads: Sequence[ShardLoad]
    """The loads of all shards, by shard."""
    decided_s: Sequence[float]
    """When each group was last made or changed, by group id. A split sets it for both halves, a merge for the group
    that stays."""
    now_s: float


def decide_regroup(thresholds: RegroupThresholds, standing: Standing, shard: int) -> Split | Merge | None:
    """Decide what the shard should do to its group now."""
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
