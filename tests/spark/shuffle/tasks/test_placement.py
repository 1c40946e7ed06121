"""Hints: how much of a reduce task's input lies where, as Spark's scheduler sees it."""

from collections import defaultdict
from collections.abc import Sequence

import pytest

from braidlog.spark.shuffle.notification import Notification
from braidlog.spark.shuffle.tasks.placement import (
    HINTED_NODES_MAX,
    HINTS_BYTES_MAX,
    NOTIFICATION_BYTES,
    hint,
    hint_bytes,
    hinted_partitions,
    is_hint,
)

FIFTH = 0.2
"""Spark prefers hosts that hold at least this much of a task's input."""


def preferred(zones: Sequence[str], nodes_per_zone: int, partitions: int, tasks: dict[str, int]) -> dict[int, set[str]]:
    """The nodes that Spark prefers for each partition, if each node ran so many map tasks."""
    names = {zone: [f"{zone}{number}" for number in range(nodes_per_zone)] for zone in zones}
    zone_of_partition = [zones[partition % len(zones)] for partition in range(partitions)]
    held: dict[int, dict[str, float]] = {partition: defaultdict(float) for partition in range(partitions)}
    for zone in zones:
        for name in names[zone]:
            for _ in range(tasks.get(name, tasks[""])):
                for partition in range(partitions):
                    held[partition][name] += NOTIFICATION_BYTES
                hinted = hinted_partitions(zone_of_partition, zone, name, names[zone])
                sizes = hint_bytes(hinted, dict.fromkeys(range(partitions), 1), 0, len(zones) * nodes_per_zone)
                for partition, size in zip(hinted, sizes, strict=True):
                    held[partition][name] += size
    return {
        partition: {name for name, size in by_name.items() if size >= FIFTH * sum(by_name.values())}
        for partition, by_name in held.items()
    }


@pytest.mark.parametrize("zones", [("a", "b"), ("a", "b", "c")])
@pytest.mark.parametrize("nodes_per_zone", [1, 2, 4, 10, 30])
@pytest.mark.parametrize("partitions", [6, 60])
def test_only_nodes_of_the_partitions_zone_are_preferred(
    zones: Sequence[str], nodes_per_zone: int, partitions: int
) -> None:
    # One node of another zone ran several times as many tasks as the rest.
    for partition, nodes in preferred(zones, nodes_per_zone, partitions, {"": 2, "b0": 5}).items():
        assert 0 < len(nodes) <= HINTED_NODES_MAX
        assert {name[0] for name in nodes} == {zones[partition % len(zones)]}


def test_every_node_attracts_its_share() -> None:
    found = preferred(("a", "b"), 10, 400, {"": 1})
    counts = [sum(name in nodes for nodes in found.values()) for name in (f"a{number}" for number in range(10))]
    assert min(counts) > 0.4 * sum(counts) / len(counts)


def test_hints_are_few_bytes() -> None:
    sizes = hint_bytes(range(200), dict.fromkeys(range(200), 50), 0, 100)
    assert sum(sizes) <= HINTS_BYTES_MAX
    stored_bytes = 1 << 30
    assert sum(hint_bytes(range(200), dict.fromkeys(range(200), 50), stored_bytes, 100)) <= 0.011 * stored_bytes
    assert hint_bytes([], {}, 0, 1) == []


@pytest.mark.parametrize(
    ("zone_of_partition", "zone"),
    [([""] * 4, ""), (["a"] * 4, "a"), (["a", "b"], "c"), (["a", "b"], ""), (["a", "b"] * 500, "a")],
)
def test_there_are_no_hints_where_they_would_change_nothing(zone_of_partition: list[str], zone: str) -> None:
    """One zone, a zone that no partition belongs to, and more partitions than Spark looks at."""
    assert hinted_partitions(zone_of_partition, zone, "a0", ["a0"]) == []


def test_a_node_that_does_not_know_the_others_attracts_all_partitions_of_its_zone() -> None:
    assert hinted_partitions(["a", "b", "a"], "a", "", []) == [0, 2]


def test_hints_are_told_from_notifications() -> None:
    assert is_hint(hint(3, "text", "a"))
    assert not is_hint(Notification(3, "key", 0, 0, 0, 0, 0, ""))
