"""The checker over histories of a correct log: silent as they are, and never silent once one record is wrong."""

import random
import time
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

seeds = st.integers(0, 2**32)


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_a_correct_log_is_never_accused(seed: int) -> None:
    history = LogModel(seed).run()
    assert check(history) == []


def _acknowledged(history: History, random_: random.Random, *, once: bool) -> tuple[int, FinalRead, int] | None:
    """The place in the history and content of a final read, and in it the index of an acknowledged record."""
    finals = {
        (one.topic, one.partition): (at, one) for at, one in enumerate(history.operations) if isinstance(one, FinalRead)
    }
    sends = [one for one in history.operations if isinstance(one, Send) and one.outcome == "ok" and one.offset >= 0]
    sends = [one for one in sends if one.offset >= finals[one.topic, one.partition][1].log_start_offset]
    if once:
        sends = [one for one in sends if one.producer or not one.retried]
    if not sends:
        return None
    send = random_.choice(sends)
    at, final = finals[send.topic, send.partition]
    return at, final, send.offset - final.log_start_offset


def _dropped(final: FinalRead, at: int, random_: random.Random) -> FinalRead:
    values = [value for _, value in final.records]
    del values[at]
    return random_.choice([_renumbered(final, values), _with(final, final.records[:at] + final.records[at + 1 :])])


def _duplicated(final: FinalRead, at: int, random_: random.Random) -> FinalRead:
    values = [value for _, value in final.records]
    to = random_.randint(0, len(values))
    again = [*final.records[: at + 1], *final.records[at:]]
    return random_.choice([_renumbered(final, [*values[:to], values[at], *values[to:]]), _with(final, again)])


def _swapped(final: FinalRead, at: int, random_: random.Random) -> FinalRead | None:
    others = [other for other, (_, value) in enumerate(final.records) if value != final.records[at][1]]
    if not others:
        return None
    other = random_.choice(others)
    values = [value for _, value in final.records]
    values[at], values[other] = values[other], values[at]
    return _renumbered(final, values)


def _changed(final: FinalRead, at: int, random_: random.Random) -> FinalRead | None:
    values = [value for _, value in final.records]
    value = random_.choice(["?", *values])
    if value == values[at]:
        return None
    return _renumbered(final, [*values[:at], value, *values[at + 1 :]])


def _renumbered(final: FinalRead, values: list[str]) -> FinalRead:
    start = final.log_start_offset
    return msgspec.structs.replace(final, records=list(enumerate(values, start)), high_watermark=start + len(values))


def _with(final: FinalRead, records: list[tuple[int, str]]) -> FinalRead:
    return msgspec.structs.replace(final, records=records)


@pytest.mark.parametrize("corrupt", [_dropped, _duplicated, _swapped, _changed])
@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_one_wrong_record_is_found(corrupt, seed: int) -> None:  # type: ignore[no-untyped-def]
    history = LogModel(seed).run()
    random_ = random.Random(seed)
    # A plain record that was retried may be there any number of times: one more of it at the end is no fault.
    found = _acknowledged(history, random_, once=corrupt is _duplicated)
    if found is None:
        return
    place, final, at = found
    wrong = corrupt(final, at, random_)
    if wrong is None:
        return
    history.operations[place] = wrong
    anomalies = check(history)
    assert anomalies
    assert all(anomaly.partition == final.partition for anomaly in anomalies)


def test_the_model_tries_everything() -> None:
    seen = Counter[str]()
    for seed in range(40):
        for one in LogModel(seed).run().operations:
            seen[type(one).__name__] += 1
            if isinstance(one, Send):
                seen[f"{one.outcome} {'under an id' if one.producer else 'plain'} {one.retried}"] += 1
            if isinstance(one, FinalRead):
                seen["deleted"] += one.log_start_offset > 0
                seen["repeated"] += any(count > 1 for count in Counter(value for _, value in one.records).values())
    wanted = {"Send", "Poll", "ListOffset", "CommitOffset", "FetchOffset", "Assigned", "FinalRead", "deleted"}
    wanted |= {f"{outcome} {how}" for outcome in ("ok", "unknown") for how in ("under an id False", "plain False")}
    wanted |= {"ok plain True", "repeated"}
    assert {name for name in wanted if seen[name] == 0} == set()


def _long_history(count: int) -> History:
    """Twenty operations for every ten records; four operations look at two records or more."""
    history = History()
    values = [f"v-{at}" for at in range(count)]
    for at, value in enumerate(values):
        times = {"invoke_s": float(at), "complete_s": at + 5.0}
        place = {"topic": "t", "partition": 0}
        history.record(
            Send(
                client=f"p-{at % 7}",
                **times,
                **place,
                value=value,
                order=at,
                producer=str(at % 7),
                retried=False,
                outcome="ok",
                offset=at,
            )
        )
        if at % 5 == 4:
            records = list(enumerate(values[at - 4 : at + 1], at - 4))
            for client in ("c-0", "c-1"):
                poll = Poll(client=client, **times, **place, fetch_offset=at - 4, records=records, log_start_offset=0)
                history.record(poll)
            history.record(CommitOffset(client="c-0", **times, **place, group="g", offset=at + 1, outcome="ok"))
        if at % 10 == 9:
            history.record(ListOffset(client="c-0", **times, **place, which="latest", offset=at + 1))
            history.record(FetchOffset(client="c-0", **times, **place, group="g", offset=at + 1))
            history.record(Event(client="nemesis", **times, what="nothing"))
            history.record(Assigned(client="c-0", **times, group="g", generation=at, partitions=[("t", 0)]))
    end_s = count + 10.0
    history.record(
        FinalRead(
            client="f",
            invoke_s=end_s,
            complete_s=end_s,
            topic="t",
            partition=0,
            log_start_offset=0,
            high_watermark=count,
            records=list(enumerate(values)),
        )
    )
    return history


def test_a_long_history_is_checked_quickly() -> None:
    """100,000 operations in about a second. The limit allows for a busy machine, but for nothing that grows faster."""
    history = _long_history(50_000)
    assert len(history) == 100_001
    begin_s = time.process_time()
    assert check(history) == []
    assert time.process_time() - begin_s < 5.0
