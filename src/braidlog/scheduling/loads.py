"""The load of each shard, as plain counters.

A shard writes them on its own cache line, and all others may read them.

They are read without a lock, so a reader may see one shard's counters a moment older than another's. Nothing here
depends on more than that: a decision that was right a moment ago is late, but not wrong.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, inf


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """The counters of one shard."""

    backlog_bytes: int = 0
    """Bytes that this shard has accepted and nobody has pulled yet."""
    oldest_s: float = inf
    """When the oldest of their requests arrived."""
    uploads_in_flight: int = 0
    """Uploads that this shard has under way, for its whole group."""
    slots_used: float = 0.0
    """The recent average of its uploads under way. The shard updates it with `slots_used_at` just before it starts or
    ends an upload."""
    slots_used_s: float = 0.0
    """When `slots_used` was updated."""
    bytes_per_s: float = 0.0
    """The recent rate of arrivals at this shard. It updates it with `bytes_per_s_after`."""
    bytes_per_s_s: float = 0.0
    """When `bytes_per_s` was updated."""


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """The counters of a group's shards together.

    The decisions to close, split and merge use them.
    """

    member_count: int
    backlog_bytes: int
    oldest_s: float
    in_flight: int
    slots_used: float
    bytes_per_s: float


def slots_used_at(load: ShardLoad, now_s: float, memory_s: float) -> float:
    """Return the average of a shard's uploads under way.

    Weights fade with age: after `memory_s` to about a third.

    Averages of shards add up to that of their group, even if the groups have changed meanwhile.
    """
    kept = exp(-max(0.0, now_s - load.slots_used_s) / memory_s)
    return load.slots_used * kept + load.uploads_in_flight * (1.0 - kept)


def bytes_per_s_at(load: ShardLoad, now_s: float, memory_s: float) -> float:
    """Return a shard's rate of arrivals, if nothing has arrived since its last update.

    It fades in the same way.
    """
    return load.bytes_per_s * exp(-max(0.0, now_s - load.bytes_per_s_s) / memory_s)


def bytes_per_s_after(load: ShardLoad, size_bytes: int, now_s: float, memory_s: float) -> float:
    """Return a shard's rate of arrivals when `size_bytes` more have arrived."""
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
