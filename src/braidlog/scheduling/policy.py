"""Four ways to share out uploads among shards, behind one seam, so that they can be compared on the same load.

`adaptive` is what an agent runs with. The others are the designs that it replaces: `per-shard` is quickest under full
load and costs the most, `funnel` costs the least and never does better than one stream, and `coordinator` is a funnel
that spreads the work of uploading at the price of a lock on every shard for every object.
"""

from collections.abc import Sequence
from typing import Protocol

from braidlog.scheduling import turns
from braidlog.scheduling.groups import first_groups, single_groups
from braidlog.scheduling.loads import ShardLoad
from braidlog.scheduling.regrouping import Merge, RegroupThresholds, Split, Standing, decide_regroup


class Policy(Protocol):
    @property
    def name(self) -> str: ...

    def first_groups(self, shard_count: int) -> list[int]:
        """The group map that an agent starts with."""
        ...

    def regroup(self, thresholds: RegroupThresholds, standing: Standing, shard: int) -> Split | Merge | None:
        """What the shard should do to its group now: see `decide_regroup`."""
        ...

    def holder(self, shards: Sequence[int], turn: int, loads: Sequence[ShardLoad]) -> int:
        """Which member of a group pulls and uploads next. `loads` is by shard, of all shards."""
        ...

    def locks_per_pull(self, member_count: int) -> int:
        """How many locks it takes to pull what a group of so many shards holds."""
        ...


class Adaptive:
    """Groups split under load and merge without it; members take turns."""

    name = "adaptive"

    def first_groups(self, shard_count: int) -> list[int]:
        return first_groups(shard_count)

    def regroup(self, thresholds: RegroupThresholds, standing: Standing, shard: int) -> Split | Merge | None:
        return decide_regroup(thresholds, standing, shard)

    def holder(self, shards: Sequence[int], turn: int, loads: Sequence[ShardLoad]) -> int:
        return turns.holder(shards, turn)

    def locks_per_pull(self, member_count: int) -> int:
        return 1 if member_count > 1 else 0


class _Fixed(Adaptive):
    """The groups stay what they were at the start."""

    def regroup(self, thresholds: RegroupThresholds, standing: Standing, shard: int) -> Split | Merge | None:
        return None


class PerShard(_Fixed):
    """Every shard uploads its own."""

    name = "per-shard"

    def first_groups(self, shard_count: int) -> list[int]:
        return single_groups(shard_count)


class Funnel(_Fixed):
    """The first shard uploads everything."""

    name = "funnel"

    def holder(self, shards: Sequence[int], turn: int, loads: Sequence[ShardLoad]) -> int:
        return shards[0]


class Coordinator(_Fixed):
    """For every object, the first shard asks every shard for its backlog and has the one with the largest upload
    it all."""

    name = "coordinator"

    def holder(self, shards: Sequence[int], turn: int, loads: Sequence[ShardLoad]) -> int:
        return max(shards, key=lambda shard: (loads[shard].backlog_bytes, -shard))

    def locks_per_pull(self, member_count: int) -> int:
        return member_count


POLICIES: dict[str, Policy] = {policy.name: policy for policy in (Adaptive(), PerShard(), Funnel(), Coordinator())}


def policy_named(name: str) -> Policy:
    policy = POLICIES.get(name)
    if policy is None:
        raise ValueError(f"no upload policy is called {name!r}: use one of {', '.join(POLICIES)}")
    return policy
