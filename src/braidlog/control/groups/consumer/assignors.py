"""Assignors: decide which member of a consumer group reads which partition.

They are pure functions of the members, their subscriptions and their last assignment. `uniform` gives all members the
same number of partitions and moves as few as it can. `range` gives each member a run of every topic, and the same run
of topics with as many partitions, so that records with one key from several topics meet at one member.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Partition = tuple[bytes, int]
"""Topic id and partition index."""

BALANCE_ROUNDS_MAX = 16


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it."""

    member_id: str
    topics: frozenset[bytes]
    """The ids of the existing topics that it subscribes to."""
    current: frozenset[Partition]
    """Its part of the last assignment."""


Assignment = dict[str, frozenset[Partition]]
Assignor = Callable[[Sequence[Subscriber], Mapping[bytes, int]], Assignment]


def assign_uniform(subscribers: Sequence[Subscriber], partition_counts: Mapping[bytes, int]) -> Assignment:
    """Assign evenly.

    `subscribers` are in the order of joining, `partition_counts` in the order of topic names.
    """
    if not subscribers:
        return {}
    topics = subscribers[0].topics
    if all(subscriber.topics == topics for subscriber in subscribers):
        return _uniform_same_topics(subscribers, _partitions_of(topics, partition_counts))
    return _uniform_mixed_topics(subscribers, partition_counts)


def assign_range(subscribers: Sequence[Subscriber], partition_counts: Mapping[bytes, int]) -> Assignment:
    """Assign runs.

    Takes what `assign_uniform` takes; the order of joining keeps runs in place when members come.
    """
    assigned: dict[str, set[Partition]] = {subscriber.member_id: set() for subscriber in subscribers}
    for topic_id, count in partition_counts.items():
        readers = [subscriber.member_id for subscriber in subscribers if topic_id in subscriber.topics]
        if not readers:
            continue
        share, extra = divmod(count, len(readers))
        start = 0
        for place, member_id in enumerate(readers):
            end = start + share + (place < extra)
            assigned[member_id].update((topic_id, index) for index in range(start, end))
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""The assignors by the names that Kafka's clients know. The first is the default."""


def _partitions_of(topics: frozenset[bytes], partition_counts: Mapping[bytes, int]) -> list[Partition]:
    return [
        (topic_id, index)
        for topic_id, count in partition_counts.items()
        if topic_id in topics
        for index in range(count)
    ]


def _uniform_same_topics(subscribers: Sequence[Subscriber], partitions: list[Partition]) -> Assignment:
    share, extra = divmod(len(partitions), len(subscribers))
    free = dict.fromkeys(partitions)
    assigned: dict[str, list[Partition]] = {}
    # Members that had the most may keep one above the share, while there are such extras.
    extra_left = extra
    for subscriber in sorted(subscribers, key=lambda each: -len(each.current)):
        kept = [partition for partition in sorted(subscriber.current) if partition in free]
        quota = share
        if len(kept) > share and extra_left > 0:
            quota += 1
            extra_left -= 1
        assigned[subscriber.member_id] = kept[:quota]
        for partition in kept[:quota]:
            del free[partition]
    rest = iter(list(free))
    for subscriber in subscribers:
        mine = assigned[subscriber.member_id]
        quota = share
        if len(mine) <= share and extra_left > 0:
            quota += 1
            extra_left -= 1
        while len(mine) < quota:
            mine.append(next(rest))
    return {member_id: frozenset(mine) for member_id, mine in assigned.items()}


def _uniform_mixed_topics(subscribers: Sequence[Subscriber], partition_counts: Mapping[bytes, int]) -> Assignment:
    readers = {
        topic_id: [subscriber.member_id for subscriber in subscribers if topic_id in subscriber.topics]
        for topic_id in partition_counts
    }
    owner: dict[Partition, str] = {}
    load = {subscriber.member_id: 0 for subscriber in subscribers}
    for subscriber in subscribers:
        for partition in sorted(subscriber.current):
            topic_id, index = partition
            if topic_id in subscriber.topics and index < partition_counts.get(topic_id, 0) and partition not in owner:
                owner[partition] = subscriber.member_id
                load[subscriber.member_id] += 1
    # Topics with few readers first: topics with many readers even out the rest.
    every = [
        (topic_id, index)
        for topic_id in sorted(readers, key=lambda each: len(readers[each]))
        if readers[topic_id]
        for index in range(partition_counts[topic_id])
    ]
    for partition in every:
        if partition not in owner:
            member_id = min(readers[partition[0]], key=load.__getitem__)
            owner[partition] = member_id
            load[member_id] += 1
    for _ in range(BALANCE_ROUNDS_MAX):
        moved = False
        for partition in every:
            before = owner[partition]
            after = min(readers[partition[0]], key=load.__getitem__)
            if load[before] > load[after] + 1:
                owner[partition] = after
                load[before] -= 1
                load[after] += 1
                moved = True
        if not moved:
            break
    assigned: dict[str, set[Partition]] = {subscriber.member_id: set() for subscriber in subscribers}
    for partition, member_id in owner.items():
        assigned[member_id].add(partition)
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}
