"""A check of group maps."""

from collections.abc import Sequence

from braidlog.scheduling.shard_groups import members


def check_groups(groups: Sequence[int]) -> None:
    """Raise ValueError unless this is what splits and merges can make of one group."""
    if not groups:
        raise ValueError("a group map without shards")
    shard = 0
    while shard < len(groups):
        if groups[shard] != shard:
            raise ValueError(f"{list(groups)}: shard {shard} starts a group that is called {groups[shard]}")
        shards = members(groups, shard)
        size = 1 << (len(shards) - 1).bit_length()
        if shard % size or (len(shards) != size and shards.stop != len(groups)):
            raise ValueError(f"{list(groups)}: group {shard} with {len(shards)} shards is not an aligned block")
        shard = shards.stop
