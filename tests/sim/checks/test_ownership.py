"""The checker on groups whose partitions the coordinator assigns."""

from braidlog.sim.checks.checker import check
from braidlog.sim.history import ALL_IS_WELL, AnyOperation, CommitOffset, Event, History, Owned


def owned(client: str, begin_s: float, end_s: float, partition: int = 0) -> Owned:
    return Owned(client=client, invoke_s=begin_s, complete_s=end_s, group="g", topic="t", partition=partition)


def commit(client: str, begin_s: float, end_s: float, outcome: str = "ok") -> CommitOffset:
    return CommitOffset(
        client=client, invoke_s=begin_s, complete_s=end_s, group="g", topic="t", partition=0, offset=1, outcome=outcome
    )  # type: ignore[arg-type]


def well(time_s: float) -> Event:
    return Event(client="nemesis", invoke_s=time_s, complete_s=time_s, what=ALL_IS_WELL)


def kinds(*operations: AnyOperation) -> list[str]:
    return [anomaly.kind for anomaly in check(History(operations))]


def test_one_after_the_other_is_as_it_should_be() -> None:
    assert kinds(owned("a", 0, 5), owned("b", 5, 9), owned("a", 3, 8, partition=1), commit("a", 1, 2)) == []


def test_two_at_a_time_are_found() -> None:
    assert kinds(owned("a", 0, 5), owned("b", 4.9, 9)) == ["double-ownership"]
    assert kinds(owned("a", 0, 5), owned("a", 4, 9)) == []


def test_a_commit_while_another_has_the_partition_is_found() -> None:
    assert kinds(owned("b", 0, 9), commit("a", 1, 2)) == ["foreign-commit"]
    assert kinds(owned("b", 0, 9), commit("a", 1, 2, "failed")) == []
    assert kinds(owned("b", 1.5, 9), commit("a", 1, 2)) == [], "it may have been in time"


def test_a_partition_that_nobody_reads_in_the_end_is_found() -> None:
    assert kinds(owned("a", 0, 10), well(5.0)) == ["orphaned-partition"]
    assert kinds(owned("a", 0, 30), well(5.0)) == []
    assert kinds(owned("a", 0, 10), owned("b", 12, 20), well(5.0)) == []
