"""Histories of transactions, and what the checker finds in them."""

from typing import Any

import pytest

from braidlog.sim.checks.checker import check
from braidlog.sim.history import (
    AnyOperation,
    CommittedPoll,
    FetchOffset,
    FinalCommitted,
    FinalRead,
    History,
    Transaction,
)
from braidlog.sim.story import tell


def transaction(number: int, outcome: Any, *values: str, end_s: float | None = None, **options: Any) -> Transaction:
    """From second `10 * number` on. The value `a0` goes to partition 0."""
    begin_s = 10.0 * number
    asked_s = None if outcome == "aborted" else begin_s + 5
    return Transaction(
        client="p",
        invoke_s=begin_s,
        complete_s=begin_s + 9 if end_s is None else end_s,
        number=number,
        values=[("t", int(value[-1]), value) for value in values],
        outcome=outcome,
        commit_invoked_s=asked_s,
        **options,
    )


def poll(at_s: float, start: int, end: int, *records: tuple[int, str]) -> CommittedPoll:
    return CommittedPoll(
        client="c",
        invoke_s=at_s,
        complete_s=at_s,
        topic="t",
        partition=0,
        fetch_offset=start,
        next_offset=end,
        records=list(records),
    )


def final(partition: int, *records: tuple[int, str], stable: int = 100, end: int = 100) -> FinalCommitted:
    return FinalCommitted(
        client="final",
        invoke_s=1000.0,
        complete_s=1000.0,
        topic="t",
        partition=partition,
        high_watermark=end,
        stable_offset=stable,
        records=list(records),
    )


def fetched(at_s: float, offset: int) -> FetchOffset:
    return FetchOffset(client="p", invoke_s=at_s, complete_s=at_s, group="g", topic="t", partition=0, offset=offset)


GOOD: dict[str, list[AnyOperation]] = {
    "committed and aborted": [
        transaction(0, "committed", "a0", "a1"),
        transaction(1, "aborted", "b0", "b1"),
        poll(30.0, 0, 9, (0, "a0")),
        final(0, (0, "a0")),
        final(1, (0, "a1")),
    ],
    "an unknown end, all of it": [transaction(0, "unknown", "a0", "a1"), final(0, (0, "a0")), final(1, (0, "a1"))],
    "an unknown end, nothing of it": [transaction(0, "unknown", "a0", "a1"), final(0), final(1)],
    "read while the commit is under way": [
        transaction(0, "committed", "a0"),
        poll(6.0, 0, 1, (0, "a0")),
        final(0, (0, "a0")),
    ],
    "offsets": [
        transaction(1, "committed", "a0", group="g", offset=1),
        transaction(2, "aborted", "b0", group="g", offset=2),
        transaction(3, "unknown", "c0", group="g", offset=3),
        fetched(1.0, -1),
        fetched(16.0, 1),
        fetched(25.0, 1),
        fetched(50.0, 1),
        fetched(60.0, 3),
        final(0, (0, "a0"), (9, "c0")),
    ],
}

BAD: dict[str, tuple[str, list[AnyOperation]]] = {
    "a part of a committed one": (
        "torn-transaction",
        [transaction(0, "committed", "a0", "a1"), final(0, (0, "a0")), final(1)],
    ),
    "a part of one whose end is unknown": (
        "torn-transaction",
        [transaction(0, "unknown", "a0", "a1"), final(0, (0, "a0")), final(1)],
    ),
    "nothing of a committed one": ("torn-transaction", [transaction(0, "committed", "a0"), final(0)]),
    "an aborted one in the end": ("aborted-read", [transaction(0, "aborted", "a0"), final(0, (0, "a0"))]),
    "an aborted one on the way": (
        "aborted-read",
        [transaction(0, "aborted", "a0"), poll(20.0, 0, 1, (0, "a0")), final(0)],
    ),
    "an open one": (
        "aborted-read",
        [transaction(0, "committed", "a0"), poll(4.0, 0, 1, (0, "a0")), final(0, (0, "a0"))],
    ),
    "one that was there and is not": (
        "aborted-read",
        [transaction(0, "unknown", "a0"), poll(7.0, 0, 1, (0, "a0")), final(0)],
    ),
    "a committed one is left out": (
        "skipped-poll",
        [transaction(0, "committed", "a0"), poll(20.0, 0, 5), final(0, (0, "a0"))],
    ),
    "one that never ends": ("stuck-transaction", [transaction(0, "aborted", "a0"), final(0, stable=3)]),
    "the offset of an open one": (
        "uncommitted-offset",
        [transaction(1, "committed", "a0", group="g", offset=1), fetched(11.0, 1), final(0, (0, "a0"))],
    ),
    "the offset of an aborted one": (
        "uncommitted-offset",
        [transaction(1, "aborted", "a0", group="g", offset=1), fetched(30.0, 1), final(0)],
    ),
    "a committed offset is not there": (
        "torn-transaction",
        [transaction(1, "committed", "a0", group="g", offset=1), fetched(30.0, -1), final(0, (0, "a0"))],
    ),
}


@pytest.mark.parametrize("operations", GOOD.values(), ids=GOOD.keys())
def test_nothing_is_found(operations: list[AnyOperation]) -> None:
    assert check(History(operations)) == []


@pytest.mark.parametrize(("kind", "operations"), BAD.values(), ids=BAD.keys())
def test_found_and_told(kind: str, operations: list[AnyOperation]) -> None:
    history = History(operations)
    found = check(history)
    assert {anomaly.kind for anomaly in found} == {kind}
    assert found[0].message in tell(history, found)
    assert History.from_jsonl(history.to_jsonl()).operations == operations


def test_markers_are_no_gap() -> None:
    def read(*offsets: int, markers: list[int]) -> FinalRead:
        return FinalRead(
            client="final",
            invoke_s=1.0,
            complete_s=1.0,
            topic="t",
            partition=0,
            log_start_offset=0,
            high_watermark=4,
            records=[(offset, f"v{offset}") for offset in offsets],
            markers=markers,
        )

    kinds = [anomaly.kind for anomaly in check(History([read(0, 2, markers=[1, 3])]))]
    assert "offset-gap" not in kinds
    kinds = [anomaly.kind for anomaly in check(History([read(0, 2, markers=[3])]))]
    assert "offset-gap" in kinds
