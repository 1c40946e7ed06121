"""What the checker makes of records that were acknowledged before they had offsets."""

from typing import Any

import pytest

from braidlog.sim.checks.checker import check
from braidlog.sim.history import FinalRead, History, Journaled, Send


def send(value: str, at: float, offset: int = -1, **changes: Any) -> Send:
    fields = {"producer": "", "retried": False, "outcome": "ok", "lazy": offset < 0, "connection": "agent#1"}
    return Send(
        client="p",
        invoke_s=at,
        complete_s=at + 0.5,
        topic="t",
        partition=0,
        value=value,
        order=int(at),
        offset=offset,
        **{**fields, **changes},
    )


def kinds(sends: list[Send], log: str, *, keeps_order: bool = True) -> list[str]:
    times: dict[str, Any] = {"client": "final", "invoke_s": 100.0, "complete_s": 101.0, "topic": "t"}
    read = FinalRead(**times, partition=0, log_start_offset=0, high_watermark=len(log), records=list(enumerate(log)))
    return [each.kind for each in check(History([Journaled(**times, keeps_order=keeps_order), *sends, read]))]


def test_records_without_idempotence_may_lie_in_any_order() -> None:
    assert kinds([send("a", 1), send("b", 2)], "ba") == []


def test_but_all_of_them_and_each_once() -> None:
    assert kinds([send("a", 1), send("b", 2)], "b") == ["lost-write"]
    assert kinds([send("a", 1), send("b", 2)], "bab") == ["duplicate"]
    assert kinds([send("a", 1, retried=True), send("b", 2)], "aba") == []
    assert kinds([send("a", 1, outcome="failed", error="no"), send("b", 2)], "ab") == ["phantom"]


def test_an_idempotent_producer_keeps_its_order() -> None:
    sends = [send("a", 1, producer="7"), send("b", 2, producer="7"), send("c", 3, producer="8")]
    assert kinds(sends, "cab") == []
    assert kinds(sends, "bca") == ["order-within-producer"]
    assert kinds(sends, "bca", keeps_order=False) == []


def test_what_its_producer_gave_up_may_come_late() -> None:
    late = send("a", 1, producer="7", outcome="unknown", lazy=False)
    assert kinds([late, send("b", 2, producer="7")], "ba") == []
    assert kinds([late, send("b", 2, producer="7")], "aba") == ["duplicate"]


def test_once_offsets_are_told_nothing_is_left_behind() -> None:
    """The topic has left the journal on that connection before all that was journaled there was sequenced."""
    assert kinds([send("a", 1), send("b", 2, 0)], "ba") == ["order-within-connection"]
    assert kinds([send("a", 1, connection="agent#2"), send("b", 2, 0)], "ba") == []
    assert kinds([send("a", 1), send("b", 2, 1)], "ab") == []


@pytest.mark.parametrize("connection", ["agent#1", "agent#2"])
def test_nothing_lies_before_an_offset_that_had_been_told(connection: str) -> None:
    assert kinds([send("b", 1, 1), send("a", 5, connection=connection)], "ab") == ["external-consistency"]
    assert kinds([send("b", 1, 0), send("a", 5, connection=connection)], "ba") == []
