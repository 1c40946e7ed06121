"""Four ways to divide uploads among shards, behind one seam.

So they can be compared on the same load.

`adaptive` is what an agent runs with. The others are the designs that it replaces: `per-shard` is quickest under full
load and costs the most, `funnel` costs the least and never does better than one stream, and `coordinator` is a funnel
that spreads the work of uploading at the price of a lock on every shard for every object.
"""

from collections.abc import Sequence
from typing import Protocol

from braidlog.scheduling import pullers
from braidlog.scheduling.loads import ShardLoad
from braidlog.scheduling.regrouping import Merge, RegroupThresholds, Split, Standing, decide_regroup
from braidlog.scheduling.shard_groups import first_groups, single_groups


class Policy(Protocol):
    """Decides how shards are grouped, and which of them uploads next."""

    @property
    def name(self) -> str: ...

    def first_groups(self, shard_count: int) -> list[int]:
        """Return the group map that an agent starts with."""
        ...

    def regroup(self, thresholds: RegroupThresholds, standing: Standing, shard: int) -> Split | Merge | None:
        """Decide what the shard should do to its group now: see `decide_regroup`."""
        ...

    def puller(self, shards: Sequence[int], pull_count: int, loads: Sequence[ShardLoad]) -> int:
        """Return the member of a group that pulls and uploads next.

        `loads` has all shards.
        """
        ...

    def locks_per_pull(self, member_count: int) -> int:
        """Return how many locks a pull takes in a group of so many shards."""
        ...


class Adaptive:
    """Groups split under load and merge without it; members take turns."""

    name = "adaptive"

    def first_groups(self, shard_count: int) -> list[int]:
        return first_groups(shard_count)

    def regroup(self, thresholds: RegroupThresholds, standing: Standing, shard: int) -> Split | Merge | None:
        return decide_regroup(thresholds, standing, shard)

    def puller(self, shards: Sequence[int], pull_count: int, loads: Sequence[ShardLoad]) -> int:
        return pullers.next_puller(shards, pull_count)

    def locks_per_pull(self, member_count: int) -> int:
        return 1 if member_count > 1 else 0


class _Fixed(Adaptive):
    """A policy whose groups never change."""

    def regroup(self, thresholds: RegroupThresholds, standing: Standing, shard: int) -> Split | Merge | None:
        return None


class PerShard(_Fixed):
    """Every shard uploads its own requests."""

    name = "per-shard"

    def first_groups(self, shard_count: int) -> list[int]:
        return single_groups(shard_count)


class Funnel(_Fixed):
    """The first shard uploads everything."""

    name = "funnel"

    def puller(self, shards: Sequence[int], pull_count: int, loads: Sequence[ShardLoad]) -> int:
        return shards[0]


class Coordinator(_Fixed):
    """Lets the shard with the largest backlog upload each object.

    For every object, the first shard asks every shard for its backlog, and has that one upload it all.
    """

    name = "coordinator"

    def puller(self, shards: Sequence[int], pull_count: int, loads: Sequence[ShardLoad]) -> int:
        return max(shards, key=lambda shard: (loads[shard].backlog_bytes, -shard))

    def locks_per_pull(self, member_count: int) -> int:
        return member_count


POLICIES: dict[str, Policy] = {policy.name: policy for policy in (Adaptive(), PerShard(), Funnel(), Coordinator())}


def policy_named(name: str) -> Policy:
    policy = POLICIES.get(name)
    if policy is None:
        raise ValueError(f"no upload policy is called {name!r}: use one of {', '.join(POLICIES)}")
    return policy
