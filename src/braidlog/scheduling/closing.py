"""When the batcher closes an object: enough bytes, enough time, or a store that has nothing better to do."""

from dataclasses import dataclass

from braidlog.scheduling.budget import PutBudget


@dataclass(frozen=True, slots=True)
class CloseThresholds:
    size_bytes: int
    interval_s: float
    in_flight_max: int
    """Uploads at once. With so many under way, requests gather in the batcher, and past the memory budget at the
    sockets."""
    early_in_flight_max: int
    """An early close is worth its PUT only while few objects are under way, up to their acknowledgement: behind a queue
    it would not be early."""
    size_bytes_behind: int | None = None
    """What an object may grow to while it would not be early: where PUTs cost nothing, the work of each does. None: not
    beyond `size_bytes`."""


@dataclass(frozen=True, slots=True)
class Close:
    """Take about this many bytes from the front of the backlog and upload them now."""

    bytes_target: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before this many seconds have passed (None: before something else happens)."""

    seconds: float | None


def decide_close(
    thresholds: CloseThresholds,
    budget: PutBudget,
    *,
    now_s: float,
    backlog_bytes: int,
    oldest_s: float,
    in_flight: int,
    unanswered: int | None = None,
    flush: bool = False,
) -> Close | Wait:
    """The batcher's one decision. `oldest_s` is when the oldest waiting request arrived. `in_flight` counts uploads;
    `unanswered` counts objects that are not acknowledged yet, uploaded or not (None: not known)."""
    if backlog_bytes == 0 or in_flight >= thresholds.in_flight_max:
        return Wait(None)
    is_behind = (in_flight if unanswered is None else unanswered) >= thresholds.early_in_flight_max
    size_bytes = thresholds.size_bytes_behind if is_behind and thresholds.size_bytes_behind else thresholds.size_bytes
    if backlog_bytes >= size_bytes:
        budget.take_due(now_s)
        # Equal chunks: no small rest is left over that would cost a PUT of its own.
        chunks = max(1, round(backlog_bytes / size_bytes))
        return Close(-(-backlog_bytes // chunks))
    due_s = oldest_s + thresholds.interval_s
    if flush or now_s >= due_s:
        budget.take_due(now_s)
        return Close(backlog_bytes)
    if is_behind:
        return Wait(due_s - now_s)
    if budget.take_early(now_s):
        return Close(backlog_bytes)
    return Wait(min(due_s - now_s, budget.next_early_s(now_s)))
