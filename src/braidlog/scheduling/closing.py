"""Decides when to close an object: by bytes, by time, or early within the budget."""

from dataclasses import dataclass

from braidlog.scheduling.budget import PutBudget


@dataclass(frozen=True, slots=True)
class CloseThresholds:
    """The limits at which an object is closed."""

    size_bytes: int
    interval_s: float
    in_flight_max: int
    """The most uploads at once. With so many under way, requests gather in the batcher and, past the memory budget, in
    the sockets."""
    early_in_flight_max: int
    """From so many unacknowledged objects on, no object is closed early: behind a queue it would not be early."""
    size_bytes_behind: int | None = None
    """The size at which an object behind such a queue is closed. Where PUTs cost nothing, larger objects save work.
    None: `size_bytes`."""


@dataclass(frozen=True, slots=True)
class Close:
    """Take about this many bytes from the front of the backlog and upload them now."""

    bytes_target: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for this many seconds (None: until something else happens)."""

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
    """Decide whether to close an object now.

    `oldest_s` is when the oldest waiting request arrived. `in_flight` counts uploads; `unanswered` counts objects that
    are not acknowledged yet, uploaded or not (None: unknown).
    """
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
