"""The story of an anomaly: the operations concerned and the events around them, short and in order."""

import msgspec
from tests.sim.checks.log_model import LogModel

from braidlog.sim.checks.checker import check
from braidlog.sim.history import (
    Assigned,
    CommitOffset,
    Event,
    FetchOffset,
    FinalRead,
    History,
    ListOffset,
    Poll,
    Send,
)
from braidlog.sim.story import tell

PLACE = {"topic": "orders", "partition": 0}


def event(what: str, at: float) -> Event:
    return Event(client="nemesis", invoke_s=at, complete_s=at, what=what)


def send(value: str, order: int, offset: int, at: float) -> Send:
    return Send(
        client="producer-1",
        invoke_s=at,
        complete_s=at + 0.5,
        **PLACE,
        value=value,
        order=order,
        producer="7",
        retried=True,
        outcome="ok",
        offset=offset,
    )


def poll(fetch_offset: int, records: list[tuple[int, str]], at: float) -> Poll:
    return Poll(
        client="reader-1",
        invoke_s=at,
        complete_s=at,
        **PLACE,
        fetch_offset=fetch_offset,
        records=records,
        log_start_offset=0,
    )


def final(*values: str) -> FinalRead:
    records = list(enumerate(values))
    return FinalRead(
        client="final",
        invoke_s=100.0,
        complete_s=101.0,
        **PLACE,
        log_start_offset=0,
        high_watermark=len(values),
        records=records,
    )


LOST = History(
    [
        event("long before", 1.0),
        send("a", 0, 0, 40.0),
        event("kill agent-1", 45.0),
        send("b", 1, 1, 50.0),
        poll(0, [(0, "a"), (1, "b")], 51.0),
        event("all is well again", 60.0),
        final("a"),
        event("after everything", 200.0),
    ]
)


def test_the_story_of_a_lost_write() -> None:
    assert tell(LOST, check(LOST)).splitlines() == [
        "lost-write at 50.500 s: 'b' was acknowledged at offset 1, but the log of orders/0 does not have it",
        "     45.000 s                 ── kill agent-1 ──",
        ">    50.000 s to    50.500 s  producer-1 sends 'b' (number 1) to orders/0 under producer id 7 more than once: "
        "acknowledged at offset 1",
        "     51.000 s                 reader-1 fetches orders/0 from 0 and is given 2 records from 0 to 1, "
        "among them 'b' at 1; the log starts at 0",
        "     60.000 s                 ── all is well again ──",
        ">   100.000 s to   101.000 s  the final read of orders/0 [0, 1) has 1 record from 0 to 0",
    ]


def test_a_story_of_nothing() -> None:
    assert tell(History(), []) == "Nothing is wrong with this history."


def test_the_others_are_counted() -> None:
    history = History([send("a", 0, 0, 1.0), send("b", 1, 1, 2.0), send("c", 2, 2, 3.0), final()])
    assert tell(history, check(history)).splitlines()[1] == "and then: 2 x lost-write"


def test_a_long_story_loses_its_middle_but_not_its_point() -> None:
    operations = list(LOST.operations)
    operations[5:5] = [event(f"event {at}", 52.0 + at / 100) for at in range(500)]
    history = History(operations)
    for lines_max in (5, 10, 40):
        lines = tell(history, check(history), lines_max=lines_max).splitlines()
        assert len(lines) == lines_max
        assert sum(line.startswith(">") for line in lines) == 2
        assert sum("more …" in line for line in lines) >= 1
    assert "  … 467 more …" in lines


def test_what_is_marked_in_the_middle_stays() -> None:
    events = [event(f"event {at}", 10.0 + at) for at in range(80)]
    history = History([*events[:40], send("a", 0, 1, 49.5), *events[40:], final("x", "a"), send("x", 1, 0, 89.0)])
    anomalies = check(history)
    assert {anomaly.kind for anomaly in anomalies} == {"external-consistency", "order-within-producer"}
    lines = tell(history, anomalies, lines_max=12).splitlines()
    assert len(lines) <= 12
    assert sum(line.startswith(">") for line in lines) == 2


def test_a_story_of_a_group_follows_the_group() -> None:
    def commit(group: str, offset: int, at: float) -> CommitOffset:
        return CommitOffset(client="m-1", invoke_s=at, complete_s=at, **PLACE, group=group, offset=offset, outcome="ok")

    owned = Assigned(
        client="m-2", invoke_s=6.0, complete_s=6.0, group="g", generation=2, partitions=[("orders", 0), ("orders", 1)]
    )
    fetched = FetchOffset(client="m-2", invoke_s=7.0, complete_s=7.0, **PLACE, group="g", offset=-1)
    history = History(
        [commit("g", 3, 1.0), commit("g", 5, 3.0), commit("h", 9, 4.0), event("kill control", 5.0), owned, fetched]
    )
    assert tell(history, check(history)).splitlines() == [
        "group-offset-went-back at 7.000 s: group g fetched offset -1 for orders/0 after m-1 had committed 5",
        ">     3.000 s                 m-1 commits 5 of orders/0 for group g: ok",
        "      5.000 s                 ── kill control ──",
        "      6.000 s                 m-2 is given orders/0, orders/1 in generation 2 of group g",
        ">     7.000 s                 m-2 asks for group g's offset of orders/0: none",
    ]


def test_a_story_of_a_list() -> None:
    listed = ListOffset(client="c", invoke_s=3.0, complete_s=3.0, **PLACE, which="latest", offset=0)
    history = History([send("a", 0, 0, 1.0), listed, final("a")])
    assert "c asks for the latest offset of orders/0: 0" in tell(history, check(history))


def test_a_story_of_polls_names_the_offset() -> None:
    history = History([send("a", 0, 0, 1.0), send("b", 1, 1, 1.0), poll(0, [(1, "b")], 3.0), final("a", "b")])
    story = tell(history, check(history))
    assert "was never given offset 0 ('a')" in story
    assert "producer-1 sends 'a'" in story
    assert "producer-1 sends 'b'" not in story


def test_a_story_can_be_told_of_a_history_read_from_its_lines() -> None:
    again = History.from_jsonl(LOST.to_jsonl())
    assert tell(again, check(LOST)) == tell(LOST, check(LOST))


def test_any_anomaly_has_a_story_of_limited_length() -> None:
    for seed in range(20):
        history = LogModel(seed).run()
        finals = [at for at, one in enumerate(history.operations) if isinstance(one, FinalRead)]
        last = history.operations[finals[-1]]
        assert isinstance(last, FinalRead)
        history.operations[finals[-1]] = msgspec.structs.replace(last, records=last.records[::-1])
        anomalies = check(history)
        for at in range(len(anomalies)):
            lines = tell(history, anomalies[at:], lines_max=15).splitlines()
            assert 1 < len(lines) <= 15
