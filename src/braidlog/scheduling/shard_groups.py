"""The map of shard groups: which shards upload together.

A group is a block of a buddy allocator: half of it splits off, and only that half comes back. The whole state is one
array from shard to group id, and an id is the number of the group's first shard. So membership needs no table, no
allocation and no agreement: `[0, 0, 2, 2, 4, 4, 4, 4]` is three groups, 2 can only merge with 0, and 4 with neither of
them before they have merged.

Block sizes are powers of two, and blocks are aligned to their size. They are cut off at the number of shards. A block
that is cut off has the same members as some smaller ones, so a group there may stand for any of these: it splits as the
smallest, so that neither half is empty, and merges as the largest.
"""

from collections.abc import Sequence


def first_groups(shard_count: int) -> list[int]:
    """Put all shards into one group: the fewest PUTs. Only load splits it."""
    if shard_count < 1:
        raise ValueError(f"{shard_count} shards: there must be at least one")
    return [0] * shard_count


def single_groups(shard_count: int) -> list[int]:
    """Put every shard into a group of its own: the most uploads at once."""
    if shard_count < 1:
        raise ValueError(f"{shard_count} shards: there must be at least one")
    return list(range(shard_count))


def group_ids(groups: Sequence[int]) -> list[int]:
    return [shard for shard, group in enumerate(groups) if group == shard]


def members(groups: Sequence[int], group: int) -> range:
    """Return the group's shards. Its id is the first of them."""
    if not 0 <= group < len(groups) or groups[group] != group:
        raise ValueError(f"{group} is no group of {list(groups)}")
    end = group + 1
    while end < len(groups) and groups[end] == group:
        end += 1
    return range(group, end)


def halves(groups: Sequence[int], group: int) -> tuple[range, range] | None:
    """Return the two groups that a split would make; None for a group of one."""
    shards = members(groups, group)
    if len(shards) == 1:
        return None
    middle = group + _power_of_two_from(len(shards)) // 2
    return range(group, middle), range(middle, shards.stop)


def buddy(groups: Sequence[int], group: int) -> int | None:
    """Return the group that a merge would unite it with.

    It is the aligned other half, if that is one whole group now.
    """
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
    """Merge the group with its buddy.

    Only the lower of the two may, so that they never both do.
    """
    other = buddy(groups, group)
    if other is None:
        raise ValueError(f"group {group} of {list(groups)} has no whole buddy to merge with")
    if other < group:
        raise ValueError(f"group {group} is the higher buddy: only {other} may merge the two")
    after = list(groups)
    for shard in members(groups, other):
        after[shard] = group
    return after


def middles_around(shard_count: int, shard: int) -> list[int]:
    """Return the middles of the blocks around the shard, the largest block first.

    A middle is the first shard of the upper half. Blocks that are cut off so that they have no upper half are left out.
    """
    middles: list[int] = []
    start, size = 0, _power_of_two_from(shard_count)
    while size > 1:
        size //= 2
        middle = start + size
        if middle < shard_count:
            middles.append(middle)
        if shard >= middle:
            start = middle
    return middles


def block_around(shard: int, middles: Sequence[int], starts: Sequence[int]) -> range:
    """Return the shard's group.

    `starts` says of each shard whether a group starts there; `middles` are those around the shard. Starts inside a
    whole block do not matter, so that any `starts` makes a valid map.
    """
    start, end = 0, len(starts)
    for middle in middles:
        if not starts[middle]:
            break
        if middle <= shard:
            start = middle
        else:
            end = middle
    return range(start, end)


def nested_middles(shard_count: int) -> list[tuple[int, int]]:
    """Return every middle of a block, the largest block first.

    With each comes the middle of the block around it (or 0).
    """
    around = [[0, *middles_around(shard_count, shard)] for shard in range(shard_count)]
    nested = {(middles[depth + 1], middles[depth]) for middles in around for depth in range(len(middles) - 1)}
    return sorted(nested, key=lambda pair: (-(pair[0] & -pair[0]), pair[0]))


def groups_from_starts(starts: Sequence[int], nesting: Sequence[tuple[int, int]]) -> list[int]:
    """Return the whole map, by the same rule as `block_around`."""
    counts = [False] * len(starts)
    counts[0] = True
    for middle, outer in nesting:
        counts[middle] = counts[outer] and starts[middle] != 0
    groups: list[int] = []
    group = 0
    for shard, is_first in enumerate(counts):
        if is_first:
            group = shard
        groups.append(group)
    return groups


def _power_of_two_from(count: int) -> int:
    """Return the smallest power of two that is not less than `count`."""
    return 1 << (count - 1).bit_length()


def _block_size(shard_count: int, shards: range) -> int:
    """Return the size of the largest block that has exactly these shards."""
    if shards.stop < shard_count:
        return len(shards)
    if shards.start == 0:
        return _power_of_two_from(shard_count)
    return shards.start & -shards.start
