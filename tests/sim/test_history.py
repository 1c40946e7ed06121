"""Histories as lines: nothing is lost on the way, and the same run gives the same bytes."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.sim.history import (
    AnyOperation,
    Assigned,
    CommitOffset,
    CommittedPoll,
    Compacted,
    Event,
    FetchOffset,
    FinalCommitted,
    FinalRead,
    History,
    Journaled,
    ListOffset,
    Owned,
    Poll,
    Send,
    Transaction,
)

TIMES = {"client": "c-1", "invoke_s": 0.5, "complete_s": 1.25}
PLACE = {"topic": "orders", "partition": 3}

ONE_OF_EACH: list[AnyOperation] = [
    Send(**TIMES, **PLACE, value="c-1/0", order=0, producer="7", retried=True, outcome="ok", offset=12),
    Poll(**TIMES, **PLACE, fetch_offset=12, records=[(12, "c-1/0"), (13, "ß")], log_start_offset=2, is_reset=True),
    ListOffset(**TIMES, **PLACE, which="latest", offset=14),
    CommitOffset(**TIMES, **PLACE, group="readers", offset=14, outcome="unknown"),
    FetchOffset(**TIMES, **PLACE, group="readers", offset=-1),
    Assigned(**TIMES, group="readers", generation=4, partitions=[("orders", 3), ("clicks", 0)]),
    Event(**TIMES, what="kill agent-1"),
    FinalRead(**TIMES, **PLACE, log_start_offset=2, high_watermark=3, records=[(2, "x")]),
]

NEWER: list[AnyOperation] = [
    Compacted(**TIMES, topic="orders", delete_retention_s=1.5),
    Journaled(**TIMES, topic="clicks", keeps_order=False),
    FinalRead(**TIMES, **PLACE, log_start_offset=2, high_watermark=4, records=[(2, "x")], markers=[3]),
    Transaction(
        **TIMES, number=3, values=[("t", 0, "v")], outcome="unknown", commit_invoked_s=1.0, group="g", offset=3
    ),
    Owned(**TIMES, **PLACE, group="readers"),
    CommittedPoll(**TIMES, **PLACE, fetch_offset=1, next_offset=4, records=[(2, "x")]),
    FinalCommitted(**TIMES, **PLACE, high_watermark=4, stable_offset=4, records=[(2, "x")]),
]


def test_every_type_of_operation_is_tried() -> None:
    assert {type(operation) for operation in [*ONE_OF_EACH, *NEWER]} == set(get_args(AnyOperation))


@pytest.mark.parametrize("operation", [*ONE_OF_EACH, *NEWER], ids=lambda operation: type(operation).__name__)
def test_an_operation_survives_its_line(operation: AnyOperation) -> None:
    data = History([operation]).to_jsonl()
    assert data.count(b"\n") == 1
    assert History.from_jsonl(data).operations == [operation]


def test_a_history_keeps_its_order() -> None:
    history = History()
    for operation in reversed(ONE_OF_EACH):
        history.record(operation)
    again = History.from_jsonl(history.to_jsonl())
    assert len(again) == len(ONE_OF_EACH)
    assert again.operations == list(reversed(ONE_OF_EACH))
    assert again.to_jsonl() == history.to_jsonl()


def test_an_empty_history_is_no_bytes() -> None:
    assert History().to_jsonl() == b""
    assert History.from_jsonl(b"").operations == []


def test_the_digest_is_the_same_for_the_same_operations() -> None:
    history = History(ONE_OF_EACH)
    assert history.digest() == History.from_jsonl(history.to_jsonl()).digest()
    # A fixed figure: digests that were noted down must stay comparable from one release to the next.
    assert History(ONE_OF_EACH).digest() == "54d87e0e5282cb9ef9ef8061e1784629088269810708127c22713ac64e366538"


def test_the_digest_tells_orders_and_values_apart() -> None:
    history = History(ONE_OF_EACH)
    other_value = msgspec.structs.replace(ONE_OF_EACH[0], offset=13)
    digests = {
        history.digest(),
        History(ONE_OF_EACH[:-1]).digest(),
        History(reversed(ONE_OF_EACH)).digest(),
        History([other_value, *ONE_OF_EACH[1:]]).digest(),
    }
    assert len(digests) == 4


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.text(alphabet=st.characters(codec="utf-8"))), max_size=5))
def test_any_text_survives(records: list[tuple[int, str]]) -> None:
    poll = Poll(**TIMES, **PLACE, fetch_offset=0, records=records, log_start_offset=0)
    assert History.from_jsonl(History([poll]).to_jsonl()).operations == [poll]
