"""The coordinator's assignors: everything once, evenly, and with as little movement as there can be."""

from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.control.groups.consumer.assignors import Assignment, Subscriber, assign_range, assign_uniform

TOPICS = [bytes([number]) * 16 for number in range(3)]

COUNTS = st.fixed_dictionaries({topic: st.integers(0, 12) for topic in TOPICS})


def subscribers(topics_of: list[frozenset[bytes]], before: Assignment) -> list[Subscriber]:
    return [
        Subscriber(f"m{number}", topics, before.get(f"m{number}", frozenset()))
        for number, topics in enumerate(topics_of)
    ]


def check_complete(members: list[Subscriber], counts: dict[bytes, int], assigned: Assignment) -> None:
    given_out = [partition for partitions in assigned.values() for partition in partitions]
    read = set().union(*(member.topics for member in members)) if members else set()
    assert sorted(given_out) == sorted((topic, index) for topic in read for index in range(counts[topic]))
    for member in members:
        assert {topic for topic, _ in assigned[member.member_id]} <= member.topics


@settings(max_examples=150, deadline=None)
@given(COUNTS, st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_with_the_same_topics_shares_differ_by_one_at_most_and_little_moves(
    counts: dict[bytes, int], sizes: list[int]
) -> None:
    everything = frozenset(TOPICS)
    before: Assignment = {}
    total = sum(counts.values())
    for size in sizes:
        members = subscribers([everything] * size, before)
        after = assign_uniform(members, counts)
        check_complete(members, counts, after)
        shares = [len(partitions) for partitions in after.values()]
        assert max(shares) - min(shares) <= 1
        # A member that stays loses only what is above its new share.
        for member in members:
            kept = len(after[member.member_id] & member.current)
            assert kept >= min(len(member.current), total // size)
        before = after


@settings(max_examples=150, deadline=None)
@given(COUNTS, st.lists(st.sets(st.sampled_from(TOPICS)).map(frozenset), min_size=1, max_size=6))
def test_with_different_topics_nothing_is_left_and_a_second_time_nothing_moves(
    counts: dict[bytes, int], topics_of: list[frozenset[bytes]]
) -> None:
    members = subscribers(topics_of, {})
    first = assign_uniform(members, counts)
    check_complete(members, counts, first)
    again = subscribers(topics_of, first)
    assert assign_uniform(again, counts) == first


@settings(max_examples=100, deadline=None)
@given(COUNTS, st.lists(st.sets(st.sampled_from(TOPICS)).map(frozenset), min_size=1, max_size=6))
def test_ranges_are_runs_that_meet_across_topics(counts: dict[bytes, int], topics_of: list[frozenset[bytes]]) -> None:
    members = subscribers(topics_of, {})
    assigned = assign_range(members, counts)
    check_complete(members, counts, assigned)
    for partitions in assigned.values():
        for topic in TOPICS:
            indexes = sorted(index for each, index in partitions if each == topic)
            assert indexes == list(range(indexes[0], indexes[-1] + 1)) if indexes else True
    if all(topics == frozenset(TOPICS) for topics in topics_of) and len(set(counts.values())) == 1:
        for partitions in assigned.values():
            runs = [sorted(index for each, index in partitions if each == topic) for topic in TOPICS]
            assert runs[0] == runs[1] == runs[2]


def test_nobody_gets_nothing() -> None:
    assert assign_uniform([], {TOPICS[0]: 3}) == {}
    assert assign_range([], {TOPICS[0]: 3}) == {}
