"""What shards tell each other of their load: plain counters, which each writes on its own cache line and all may read.

They are read without a lock, so a reader may see one shard's counters a moment older than another's. Nothing here
depends on more than that: a decision that was right a moment ago is never wrong, only late.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, inf


@dataclass(frozen=True, slots=True)
class ShardLoad:
    backlog_bytes: int = 0
    """Accepted by this shard and not yet pulled into an upload."""
    oldest_s: float = inf
    """When the oldest of these arrived."""
    uploads_in_flight: int = 0
    """That this shard has under way, for its whole group."""
    slots_used: float = 0.0
    """Its uploads under way, on average over the time lately. The shard brings it up to date with `slots_used_at` just
    before it starts or ends an upload."""
    slots_used_s: float = 0.0
    """When it did."""
    bytes_per_s: float = 0.0
    """What has arrived at this shard lately. It brings it up to date with `bytes_per_s_after`."""
    bytes_per_s_s: float = 0.0
    """When it did."""


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """The counters of some shards together: what the close decision and the regrouping look at."""

    member_count: int
    backlog_bytes: int
    oldest_s: float
    in_flight: int
    slots_used: float
    bytes_per_s: float


def slots_used_at(load: ShardLoad, now_s: float, memory_s: float) -> float:
    """A shard's uploads under way, averaged with weights that fade with age: after `memory_s` to about a third.

    Averages of shards add up to that of their group, whatever the groups were meanwhile.
    """
    kept = exp(-max(0.0, now_s - load.slots_used_s) / memory_s)
    return load.slots_used * kept + load.uploads_in_flight * (1.0 - kept)


def bytes_per_s_at(load: ShardLoad, now_s: float, memory_s: float) -> float:
    """What arrives at a shard, if nothing did since it last said so. It fades with the same weights."""
    return load.bytes_per_s * exp(-max(0.0, now_s - load.bytes_per_s_s) / memory_s)


def bytes_per_s_after(load: ShardLoad, size_bytes: int, now_s: float, memory_s: float) -> float:
    """The same, when so many more bytes have arrived."""
    return bytes_per_s_at(load, now_s, memory_s) + size_bytes / memory_s


def group_load(loads: Sequence[ShardLoad], shards: Iterable[int], *, now_s: float, memory_s: float) -> GroupLoad:
    member_count = backlog_bytes = in_flight = 0
    slots_used = bytes_per_s = 0.0
    oldest_s = inf
    for shard in shards:
        load = loads[shard]
        member_count += 1
        backlog_bytes += load.backlog_bytes
        oldest_s = min(oldest_s, load.oldest_s)
        in_flight += load.uploads_in_flight
        slots_used += slots_used_at(load, now_s, memory_s)
        bytes_per_s += bytes_per_s_at(load, now_s, memory_s)
    return GroupLoad(member_count, backlog_bytes, oldest_s, in_flight, slots_used, bytes_per_s)
