"""Each kind of anomaly: a smallest history that has it, and one that comes close and is fine."""

from dataclasses import dataclass
from typing import Any, get_args

import msgspec
import pytest

from braidlog.sim.checks.checker import Kind, check
from braidlog.sim.history import (
    AnyOperation,
    Assigned,
    CommitOffset,
    Compacted,
    Event,
    FetchOffset,
    FinalRead,
    History,
    ListOffset,
    Outcome,
    Poll,
    Send,
)


def send(value: str, offset: int = -1, *, at: float = 0.0, until: float | None = None, **changes: Any) -> Send:
    one = Send(
        client="p",
        invoke_s=at,
        complete_s=at + 1 if until is None else until,
        topic="t",
        partition=0,
        value=value,
        order=0,
        producer="1",
        retried=False,
        outcome="ok",
        offset=offset,
    )
    return msgspec.structs.replace(one, **changes)


def poll(fetch_offset: int, records: dict[int, str], *, at: float = 50.0, log_start: int = 0, **changes: Any) -> Poll:
    one = Poll(
        client="c",
        invoke_s=at,
        complete_s=at + 1,
        topic="t",
        partition=0,
        fetch_offset=fetch_offset,
        records=list(records.items()),
        log_start_offset=log_start,
    )
    return msgspec.structs.replace(one, **changes)


def final(*values: str, start: int = 0, **changes: Any) -> FinalRead:
    one = FinalRead(
        client="final",
        invoke_s=100.0,
        complete_s=101.0,
        topic="t",
        partition=0,
        log_start_offset=start,
        high_watermark=start + len(values),
        records=list(enumerate(values, start)),
    )
    return msgspec.structs.replace(one, **changes)


def latest(offset: int, at: float) -> ListOffset:
    return ListOffset(client="c", invoke_s=at, complete_s=at + 1, topic="t", partition=0, which="latest", offset=offset)


def commit(offset: int, at: float, until: float | None = None, outcome: Outcome = "ok") -> CommitOffset:
    until = at + 1 if until is None else until
    return CommitOffset(
        client="m", invoke_s=at, complete_s=until, group="g", topic="t", partition=0, offset=offset, outcome=outcome
    )


def committed(offset: int, at: float) -> FetchOffset:
    return FetchOffset(client="m", invoke_s=at, complete_s=at + 1, group="g", topic="t", partition=0, offset=offset)


def assigned(member: str, generation: int, *partitions: int, group: str = "g") -> Assigned:
    owned = [("t", partition) for partition in partitions]
    return Assigned(client=member, invoke_s=1.0, complete_s=1.0, group=group, generation=generation, partitions=owned)


def plain(value: str, offset: int = -1, **changes: Any) -> Send:
    return send(value, offset, **{"producer": "", **changes})


A, B = send("a", 0, order=0), send("b", 1, order=1)
"""Two that overlap."""
DEAD = "out_of_order_sequence_number at the head of the line"


@dataclass(frozen=True)
class Case:
    what: str
    operations: list[AnyOperation]
    kinds: tuple[Kind, ...] = ()


FINE = [
    Case("nothing at all", []),
    Case("a topic nobody wrote to", [final()]),
    Case("an event", [Event(client="nemesis", invoke_s=0.0, complete_s=0.0, what="kill")]),
    Case("all that was sent is there", [A, B, poll(0, {0: "a", 1: "b"}), final("a", "b")]),
    Case("no offset was told, and it is there", [send("a"), final("a")]),
    Case("an acknowledged record was deleted since", [A, B, final("b", start=1)]),
    Case("one of unknown offset may have been deleted", [send("a"), B, final("b", start=1)]),
    Case("an unknown one did not happen", [send("a", outcome="unknown"), final()]),
    Case("an unknown one happened", [send("a", outcome="unknown"), final("a")]),
    Case("an offset of an unknown one says nothing", [send("a", 5, outcome="unknown"), final("a")]),
    Case("a failed one did not happen", [send("a", outcome="failed"), final()]),
    Case("a plain one that was retried is there twice", [plain("a", 1, retried=True), final("a", "a")]),
    Case("two sent the same value", [send("a"), send("a", client="q"), final("a", "a")]),
    Case("one was refused, the same value sent again", [send("a", outcome="failed"), send("a"), final("a")]),
    Case(
        "an unknown one of a producer is left out",
        [send("a", order=0, outcome="unknown"), B, final("x", "b"), send("x")],
    ),
    Case("two producer ids of one client", [send("a", order=0, producer="2"), send("b", order=1), final("b", "a")]),
    Case("two clients", [send("a", order=0), send("b", order=1, client="q", producer="2"), final("b", "a")]),
    Case("two partitions", [A, final("a"), send("b", 0, order=0, partition=1), final("b", partition=1)]),
    Case("a retried plain one comes late", [plain("a", order=0, retried=True), plain("b", order=1), final("b", "a")]),
    Case(
        "an unknown plain one comes late",
        [plain("a", order=0, outcome="unknown"), plain("b", order=1), final("b", "a")],
    ),
    Case("polls on end", [A, B, poll(0, {0: "a"}, at=5), poll(1, {1: "b"}, at=7), final("a", "b")]),
    Case("an empty poll", [A, poll(0, {}, at=5), poll(0, {0: "a"}, at=7), final("a")]),
    Case("a reset goes back", [A, poll(0, {0: "a"}, at=5), poll(0, {0: "a"}, at=7, is_reset=True), final("a")]),
    Case("a reset goes on", [A, B, poll(0, {}, at=5), poll(1, {1: "b"}, at=7, is_reset=True), final("a", "b")]),
    Case("another consumer", [A, poll(0, {0: "a"}, at=5), poll(0, {0: "a"}, at=7, client="d"), final("a")]),
    Case("a poll behind a log start that moved", [A, B, poll(0, {1: "b"}, log_start=1), final("b", start=1)]),
    Case(
        "polls on either side of a log start that moved",
        [A, B, poll(0, {}, at=5), poll(1, {1: "b"}, at=7, log_start=1), final("b", start=1)],
    ),
    Case("a batch that ends with nothing to read", [A, poll(0, {0: "a"}, at=5), poll(3, {}, at=7), final("a")]),
    Case("one after the other", [send("a", 0, order=0, until=1), send("b", 1, order=1, at=2), final("a", "b")]),
    Case(
        "at the same time, either order",
        [send("a", 1, until=2), send("b", 0, at=2, client="q", producer="2"), final("b", "a")],
    ),
    Case("a list after an acknowledgement", [A, latest(1, at=2), final("a")]),
    Case("a list while the send is under way", [A, latest(0, at=1), final("a")]),
    Case("the first offset is no news", [A, msgspec.structs.replace(latest(0, at=2), which="earliest"), final("a")]),
    Case("a commit is fetched", [commit(5, 0), committed(5, 2)]),
    Case("a commit under way may not be there yet", [commit(5, 0, until=9), committed(-1, 2)]),
    Case("an unknown commit is not there", [commit(5, 0, outcome="unknown"), committed(-1, 2)]),
    Case("a lower commit after the highest", [commit(5, 0), commit(3, 2), committed(3, 4)]),
    Case("a lower commit beside the highest", [commit(5, 0, until=3), commit(3, 1), committed(3, 4)]),
    Case("an unknown lower commit that came late", [commit(3, 0, outcome="unknown"), commit(5, 2), committed(3, 4)]),
    Case("a lower commit during the fetch", [commit(5, 0), commit(3, 2), committed(3, 2)]),
    Case("a commit ends as the fetch begins", [commit(5, 0), committed(-1, 1)]),
    Case("one commit begins as another ends", [commit(3, 0), commit(5, 1), committed(3, 4)]),
    Case("more than was ever committed, by somebody unknown", [commit(5, 0), committed(9, 2)]),
    Case("a group from before the run", [committed(7, 0), commit(8, 2), committed(8, 4)]),
    Case("members share", [assigned("m", 1, 0), assigned("n", 1, 1), assigned("n", 2, 0, 1)]),
    Case("a member is told twice", [assigned("m", 1, 0), assigned("m", 1, 0)]),
    Case("two groups", [assigned("m", 1, 0), assigned("n", 1, 0, group="h")]),
    Case(
        "an out of order number that was retried", [A, send("b", outcome="unknown", error="disconnected"), final("a")]
    ),
    Case("a partition whose sends all failed needs no final read", [send("a", outcome="failed")]),
]

BAD = [
    Case("the last one is lost", [A, B, final("a")], ("lost-write",)),
    Case("one without an offset is lost", [send("a"), final()], ("lost-write",)),
    Case("one above the log start is lost", [A, B, send("c", 2, order=2), final("b", start=1)], ("lost-write",)),
    Case(
        "lost from the middle", [A, B, final("b", records=[(1, "b")], high_watermark=2)], ("lost-write", "offset-gap")
    ),
    Case("it is in another partition", [A, final(), final("a", partition=1)], ("lost-write", "phantom")),
    Case("twice under a producer id", [send("a", retried=True), final("a", "a")], ("duplicate",)),
    Case("three times is one finding", [send("a"), final("a", "a", "a")], ("duplicate",)),
    Case("twice though sent once", [plain("a"), final("a", "a")], ("duplicate",)),
    Case("twice, once below the log start", [A, B, final("b", "a", start=1)], ("duplicate",)),
    Case("twice though unknown", [send("a", outcome="unknown"), final("a", "a")], ("duplicate",)),
    Case("sent by nobody", [A, final("a", "b")], ("phantom",)),
    Case("refused, yet there", [A, send("b", outcome="failed"), final("a", "b")], ("phantom",)),
    Case("deleted since, but sent by nobody", [B, poll(0, {0: "a", 1: "b"}), final("b", start=1)], ("phantom",)),
    Case(
        "turned around under one producer id",
        [send("a", order=0), send("b", order=1), final("b", "a")],
        ("order-within-producer",),
    ),
    Case(
        "an unknown one behind its successor",
        [send("a", order=0, outcome="unknown"), send("b", order=1), final("b", "a")],
        ("order-within-producer",),
    ),
    Case(
        "turned around without a producer id",
        [plain("a", order=0), plain("b", order=1), final("b", "a")],
        ("order-within-connection",),
    ),
    Case("told another offset", [send("a", 1), send("b", client="q"), final("a", "b")], ("inconsistent-offsets",)),
    Case("told an offset past the end", [send("a", 5), final("a")], ("inconsistent-offsets",)),
    Case(
        "told the same offset",
        [send("a", 0), send("b", 0, client="q"), final("c", start=1), send("c", 1, client="r")],
        ("inconsistent-offsets",),
    ),
    Case(
        "read as another value", [A, send("b", order=1), poll(0, {0: "b"}), final("a", "b")], ("inconsistent-offsets",)
    ),
    Case("read, then gone", [send("a", outcome="unknown"), poll(0, {0: "a"}), final()], ("inconsistent-offsets",)),
    Case(
        "two consumers read differently what is deleted by now",
        [
            *(send(value, client=value, outcome="unknown") for value in "ab"),
            poll(0, {0: "a"}),
            poll(0, {0: "b"}, client="d"),
            final(start=1),
        ],
        ("inconsistent-offsets",),
    ),
    Case("a poll goes down", [A, B, poll(0, {1: "b", 0: "a"}), final("a", "b")], ("non-monotonic-poll",)),
    Case("below what was asked for", [A, B, poll(1, {0: "a", 1: "b"}), final("a", "b")], ("non-monotonic-poll",)),
    Case(
        "the next poll goes back",
        [A, poll(0, {0: "a"}, at=5), poll(0, {0: "a"}, at=7), final("a")],
        ("non-monotonic-poll",),
    ),
    Case("skipped at the start", [A, B, poll(0, {1: "b"}), final("a", "b")], ("skipped-poll",)),
    Case(
        "skipped in the middle",
        [A, B, send("c", 2, order=2), poll(0, {0: "a", 2: "c"}), final("a", "b", "c")],
        ("skipped-poll",),
    ),
    Case(
        "skipped from poll to poll",
        [A, B, poll(0, {0: "a"}, at=5), poll(2, {}, at=7), final("a", "b")],
        ("skipped-poll",),
    ),
    Case(
        "skipped what was deleted only later",
        [A, B, poll(0, {1: "b"}), final(start=2)],
        ("skipped-poll",),
    ),
    Case(
        "a later send got the lower offset",
        [send("a", 1, until=1), send("b", 0, at=2, client="q"), final("b", "a")],
        ("external-consistency",),
    ),
    Case("a list that has not heard", [A, latest(0, at=2), final("a")], ("stale-list",)),
    Case("a commit is gone", [commit(5, 0), committed(-1, 2)], ("group-offset-went-back",)),
    Case("an older commit is back", [commit(3, 0), commit(5, 2), committed(3, 4)], ("group-offset-went-back",)),
    Case(
        "a refused commit", [commit(5, 0), commit(3, 2, outcome="failed"), committed(3, 4)], ("group-offset-went-back",)
    ),
    Case(
        "an older commit is back, beside a slow one",
        [commit(1, 0), commit(3, 2), commit(5, 0.5, until=10), committed(1, 12)],
        ("group-offset-went-back",),
    ),
    Case("a lower commit after the fetch", [commit(5, 0), committed(3, 2), commit(3, 4)], ("group-offset-went-back",)),
    Case("a rewind is forgotten", [commit(5, 0), commit(3, 2), committed(5, 4)], ("group-offset-went-back",)),
    Case("what nobody committed", [commit(5, 0), commit(3, 2), committed(4, 4)], ("group-offset-went-back",)),
    Case("two owners", [assigned("m", 1, 0, 1), assigned("n", 1, 1)], ("double-assignment",)),
    Case("a gap", [A, final("a", records=[(0, "a")], high_watermark=2)], ("offset-gap",)),
    Case(
        "a gap before a low end",
        [A, send("b", order=1), final(records=[(0, "a"), (2, "b")], high_watermark=2)],
        ("offset-gap",),
    ),
    Case(
        "two at one offset",
        [A, send("b", order=1), final(records=[(0, "a"), (0, "b")], high_watermark=1)],
        ("inconsistent-offsets", "offset-gap"),
    ),
    Case("begins late", [send("a"), final("a", records=[(1, "a")], high_watermark=2)], ("offset-gap",)),
    Case("not in order", [A, B, final(records=[(1, "b"), (0, "a")], high_watermark=2)], ("offset-gap",)),
    Case("past the end", [A, B, final("a", "b", high_watermark=1)], ("offset-gap",)),
    Case(
        "a producer that cannot go on is one finding for all records of the batch",
        [send("a", outcome="failed", error=DEAD), send("b", outcome="failed", error=DEAD), final()],
        ("dead-producer",),
    ),
    Case("no final read", [A, B], ("missing-final-read",)),
    Case("no final read of one partition", [A, final("a"), send("b", partition=1)], ("missing-final-read",)),
]


COMPACTED = Compacted(client="admin", invoke_s=0.0, complete_s=0.0, topic="t", delete_retention_s=60.0)
K1, K2, L1 = send("k=1", 0), send("k=2", 1, at=2, order=1), send("l=1", 2, at=4, order=2)
GONE = send("k=!3", 3, at=6, order=3)
"""A tombstone that may be gone at 66 s."""
LATE = send("k=!3", 3, at=60, order=3)


def left(records: dict[int, str], end: int) -> FinalRead:
    """What a compacted log of so many offsets has at the end, at 101 s."""
    return final(records=list(records.items()), high_watermark=end)


FINE += [
    Case("compacted", [COMPACTED, K1, K2, L1, left({1: "k=2", 2: "l=1"}, 3)]),
    Case("not compacted yet", [COMPACTED, K1, K2, L1, left({0: "k=1", 1: "k=2", 2: "l=1"}, 3)]),
    Case("an old tombstone and what it deleted", [COMPACTED, K1, K2, L1, GONE, left({2: "l=1"}, 4)]),
    Case("a young tombstone", [COMPACTED, K1, K2, L1, LATE, left({2: "l=1", 3: "k=!3"}, 4)]),
    Case("a poll over what was compacted", [COMPACTED, K1, K2, L1, poll(0, {1: "k=2"}), left({1: "k=2", 2: "l=1"}, 3)]),
    Case("read and then compacted", [COMPACTED, K1, K2, poll(0, {0: "k=1"}), left({1: "k=2"}, 2)]),
    Case(
        "taken over by what nobody was told of",
        [COMPACTED, K1, send("k=2", at=2, order=1), send("k=!3", at=4, order=2), left({}, 3)],
    ),
]
BAD += [
    Case("the newest of its key is gone", [COMPACTED, K1, K2, left({0: "k=1"}, 2)], ("lost-write",)),
    Case("a tombstone went too early", [COMPACTED, K1, LATE, left({}, 4)], ("lost-write",)),
    Case(
        "a deleted key came back",
        [COMPACTED, K1, GONE, L1, left({0: "k=1", 2: "l=1"}, 4)],
        ("deleted-key-came-back",),
    ),
    Case(
        "read, never acknowledged, and gone",
        [COMPACTED, send("k=1", outcome="unknown"), poll(0, {0: "k=1"}), left({}, 1)],
        ("lost-write",),
    ),
    Case("moved by compaction", [COMPACTED, K2, left({0: "k=2"}, 2)], ("inconsistent-offsets",)),
    Case(
        "a poll left out the newest of its key",
        [COMPACTED, K1, K2, L1, poll(0, {2: "l=1"}), left({1: "k=2", 2: "l=1"}, 3)],
        ("skipped-poll",),
    ),
    Case(
        "left out before anything took its place",
        [COMPACTED, K1, L1, poll(0, {2: "l=1"}, at=10), send("k=9", 3, at=20, order=5), left({2: "l=1", 3: "k=9"}, 4)],
        ("skipped-poll",),
    ),
]


@pytest.mark.parametrize("case", FINE, ids=lambda case: case.what)
def test_fine(case: Case) -> None:
    assert check(History(case.operations)) == []


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.what)
def test_found(case: Case) -> None:
    found = check(History(case.operations))
    assert [anomaly.kind for anomaly in found] == list(case.kinds)
    for anomaly in found:
        assert anomaly.message
        assert anomaly.topic == "t"
        assert anomaly.operations
        assert all(operation in case.operations for operation in anomaly.operations)


FOUND_IN_TRANSACTIONS = {"aborted-read", "stuck-transaction", "torn-transaction", "uncommitted-offset"}
"""These have their own tests, in `test_checker_transactions`."""

FOUND_IN_OWNERSHIP = {"double-ownership", "foreign-commit", "orphaned-partition"}
"""And these in `test_checker_ownership`."""


def test_every_kind_is_found_alone_in_some_history() -> None:
    found_here = {case.kinds[0] for case in BAD if len(case.kinds) == 1}
    assert found_here == set(get_args(Kind)) - FOUND_IN_TRANSACTIONS - FOUND_IN_OWNERSHIP


def test_a_history_read_from_its_lines_is_judged_alike() -> None:
    for case in BAD:
        history = History(case.operations)
        assert check(History.from_jsonl(history.to_jsonl())) == check(history)


def test_findings_come_by_time() -> None:
    history = History([send("a", 0, at=9), send("b", 1, at=3, client="q"), latest(0, at=6), final()])
    found = check(history)
    assert [(anomaly.kind, anomaly.time_s) for anomaly in found] == [
        ("lost-write", 4.0),
        ("stale-list", 7.0),
        ("lost-write", 10.0),
        ("external-consistency", 10.0),
    ]


def test_one_contradiction_is_reported_once() -> None:
    polls = [poll(0, {0: "b"}, client=f"c-{at}") for at in range(5)]
    found = check(History([A, send("b", order=1), *polls, final("a", "b")]))
    assert [anomaly.kind for anomaly in found] == ["inconsistent-offsets"]
