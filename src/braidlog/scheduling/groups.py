"""Which shards upload together. A group is a block of a buddy allocator: half of it splits off, and only that half
comes back.

The whole state is one array from shard to group id, and an id is the number of the group's first shard. So who belongs
to whom needs no table, no allocation and no agreement: `[0, 0, 2, 2, 4, 4, 4, 4]` is three groups, 2 can merge with
nobody but 0, and 4 with neither of them before they have merged.

Blocks are powers of two, aligned to their size, in the smallest power of two that holds all shards, and are cut off at
the number of shards. A block that is cut off has the same members as some smaller ones, so a group there may stand for
any of these: it splits as the smallest, so that neither half is empty, and merges as the largest.
"""

from collections.abc import Sequence


def first_groups(shard_count: int) -> list[int]:
    """All shards in one group: the fewest PUTs. Load alone splits it."""
    if shard_count < 1:
        raise ValueError(f"{shard_count} shards: there must be at least one")
    return [0] * shard_count


def single_groups(shard_count: int) -> list[int]:
    """Every shard on its own: the most uploads at once."""
    if shard_count < 1:
        raise ValueError(f"{shard_count} shards: there must be at least one")
    return list(range(shard_count))


def group_ids(groups: Sequence[int]) -> list[int]:
    return [shard for shard, group in enumerate(groups) if group == shard]


def members(groups: Sequence[int], group: int) -> range:
    """The group's shards, its id being the first of them."""
    if not 0 <= group < len(groups) or groups[group] != group:
        raise ValueError(f"{group} is no group of {list(groups)}")
    end = group + 1
    while end < len(groups) and groups[end] == group:
        end += 1
    return range(group, end)


def halves(groups: Sequence[int], group: int) -> tuple[range, range] | None:
    """What a split makes of it; None for a group of one."""
    shards = members(groups, group)
    if len(shards) == 1:
        return None
    middle = group + _power_of_two_from(len(shards)) // 2
    return range(group, middle), range(middle, shards.stop)


def buddy(groups: Sequence[int], group: int) -> int | None:
    """The group that a merge would unite it with: the aligned other half, if that is one whole group right now."""
    shards = members(groups, group)
    size = _block_size(len(groups), shards)
    other = group ^ size
    if size >= len(groups) or other >= len(groups) or groups[other] != other:
        return None
    return other if members(groups, other).stop == min(other + size, len(groups)) else None


def split(groups: Sequence[int], group: int) -> list[int]:
    parts = halves(groups, group)
    if parts is None:
        raise ValueError(f"group {group} of {list(groups)} has a single shard and cannot split")
    after = list(groups)
    for shard in parts[1]:
        after[shard] = parts[1].start
    return after


def merge(groups: Sequence[int], group: int) -> list[int]:
    """The group takes in its buddy. Only the lower of the two may, so that they never take in each other."""
    other = buddy(groups, group)
    if other is None:
        raise ValueError(f"group {group} of {list(groups)} has no whole buddy to merge with")
    if other < group:
        raise ValueError(f"group {group} is the higher buddy: only {other} may merge the two")
    after = list(groups)
    for shard in members(groups, other):
        after[shard] = group
    return after


def check_groups(groups: Sequence[int]) -> None:
    """Raise ValueError unless this is what splits and merges can make of one group."""
    if not groups:
        raise ValueError("a group map without shards")
    shard = 0
    while shard < len(groups):
        if groups[shard] != shard:
            raise ValueError(f"{list(groups)}: shard {shard} starts a group that is called {groups[shard]}")
        shards = members(groups, shard)
        size = _power_of_two_from(len(shards))
        if shard % size or (len(shards) != size and shards.stop != len(groups)):
            raise ValueError(f"{list(groups)}: group {shard} with {len(shards)} shards is not an aligned block")
        shard = shards.stop


def _power_of_two_from(count: int) -> int:
    """The smallest that is not less."""
    return 1 << (count - 1).bit_length()


def _block_size(shard_count: int, shards: range) -> int:
    """Of the largest block that has exactly these shards."""
    if shards.stop < shard_count:
        return len(shards)
    if shards.start == 0:
        return _power_of_two_from(shard_count)
    return shards.start & -shards.start
