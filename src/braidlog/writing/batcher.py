"""The batch stage: gathers requests of many partitions into one draft.

A draft becomes one object and one PUT.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kio.schema.errors import ErrorCode

from braidlog.runtime.clock import Clock
from braidlog.scheduling.budget import PutBudget
from braidlog.scheduling.closing import Close, CloseThresholds, Wait, decide_close
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.stage import DraftStage

CONGESTED_RETRY_S = 0.05

TOO_SLOW = (ErrorCode.not_enough_replicas, "the object store is too slow: all upload slots are taken")
"""The error of requests that could not be uploaded in time."""


@dataclass(frozen=True, slots=True)
class BatcherStatistics:
    """The requests and drafts in a batcher's hands now."""

    backlog_bytes: int
    backlog_requests: int
    drafts_in_flight: int


class BatchStage(Protocol):
    """Gathers requests into drafts: a batcher, or the shards of an agent together."""

    def submit(self, request: WriteRequest) -> None: ...

    def uploaded(self, draft: Draft) -> None:
        """Note that an upload has ended, well or badly."""
        ...

    async def flush(self) -> None:
        """Upload what waits, and return when that has ended."""
        ...

    def batcher_statistics(self) -> BatcherStatistics: ...


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Say when to close a draft, when to wait, and when to refuse requests."""

    thresholds: CloseThresholds
    wait_s_max: float = math.inf
    """How long a request may wait for an upload. After that it is refused, and its producer may try again."""
    is_congested: Callable[[], bool] = _never
    """Whether so many objects wait to be sequenced that no others should follow them."""


class Batcher:
    """Closes a draft when there is enough for one, when time is up, or early.

    Time is up when the oldest request has waited long enough. A draft closes early where the budget allows it.
    """

    def __init__(self, next_stage: DraftStage, rules: BatchRules, budget: PutBudget, clock: Clock) -> None:
        self._next = next_stage
        self.rules = rules
        self.budget = budget
        self._clock = clock
        self._backlog: deque[tuple[float, WriteRequest]] = deque()
        self._backlog_bytes = 0
        self._in_flight = 0
        self._unanswered = 0
        self._flushing = False
        self._pump_handle: asyncio.Handle | None = None
        self._pump_is_timer = False
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()

    def submit(self, request: WriteRequest) -> None:
        if not self._backlog:
            self._idle.clear()
        self._backlog.append((self._clock.monotonic_s(), request))
        self._backlog_bytes += request.entry.length
        # Not at once: requests that arrive in the same iteration of the event loop belong in the same object.
        if self._pump_handle is None or self._pump_is_timer:
            self._schedule(0.0)

    def _schedule(self, delay_s: float) -> None:
        if self._pump_handle is not None:
            self._pump_handle.cancel()
        loop = asyncio.get_running_loop()
        self._pump_is_timer = delay_s > 0
        self._pump_handle = loop.call_later(delay_s, self._pump) if delay_s > 0 else loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_handle = None
        self._refuse_overdue()
        while self._backlog:
            decision = self._decide()
            if not isinstance(decision, Close):
                overdue_s = self._backlog[0][0] + self.rules.wait_s_max - self._clock.monotonic_s()
                wait_s = min(decision.seconds if decision.seconds is not None else math.inf, overdue_s)
                if wait_s < math.inf:
                    self._schedule(max(wait_s, 0.001))
                return
            self._close(decision.bytes_target)

    def _decide(self) -> Close | Wait:
        if self.rules.is_congested() and not self._flushing:
            return Wait(CONGESTED_RETRY_S)
        return decide_close(
            self.rules.thresholds,
            self.budget,
            now_s=self._clock.monotonic_s(),
            backlog_bytes=self._backlog_bytes,
            oldest_s=self._backlog[0][0],
            in_flight=self._in_flight,
            unanswered=self._unanswered,
            flush=self._flushing,
        )

    def _refuse_overdue(self) -> None:
        limit_s = self._clock.monotonic_s() - self.rules.wait_s_max
        while self._backlog and self._backlog[0][0] <= limit_s:
            request = self._backlog.popleft()[1]
            self._backlog_bytes -= request.entry.length
            request.fail(*TOO_SLOW)
        if not self._backlog and self._in_flight == 0:
            self._idle.set()

    def _close(self, bytes_target: int) -> None:
        partitions: dict[tuple[bytes, int], list[WriteRequest]] = {}
        size_bytes = 0
        backlog = self._backlog
        while backlog and size_bytes < bytes_target:
            request = backlog.popleft()[1]
            size_bytes += request.entry.length
            key = (request.topic_id, request.partition)
            requests = partitions.get(key)
            if requests is None:
                partitions[key] = [request]
            else:
                requests.append(request)
        self._backlog_bytes -= size_bytes
        self._in_flight += 1
        self._unanswered += 1
        self._next.submit(Draft(partitions, size_bytes, on_answered=self._answered))

    def take_backlog(self) -> list[tuple[float, WriteRequest]]:
        """Remove and return all waiting requests, with their arrival times.

        Others will upload them.
        """
        backlog = list(self._backlog)
        self._backlog.clear()
        self._backlog_bytes = 0
        if self._in_flight == 0:
            self._idle.set()
        return backlog

    @property
    def oldest_s(self) -> float:
        """When the oldest waiting request arrived."""
        return self._backlog[0][0] if self._backlog else math.inf

    @property
    def drafts_in_flight(self) -> int:
        return self._in_flight

    def uploaded(self, draft: Draft) -> None:
        """Note that an upload has ended, well or badly: there is room for the next one."""
        self._in_flight -= 1
        if self._backlog:
            self._schedule(0.0)
        elif self._in_flight == 0:
            self._idle.set()

    def _answered(self) -> None:
        self._unanswered -= 1
        if self._backlog:
            self._schedule(0.0)

    async def flush(self) -> None:
        """Upload all waiting requests now, and return when the uploads have ended."""
        self._flushing = True
        try:
            if self._backlog:
                self._schedule(0.0)
            await self._idle.wait()
        finally:
            self._flushing = False

    def batcher_statistics(self) -> BatcherStatistics:
        return BatcherStatistics(self._backlog_bytes, len(self._backlog), self._in_flight)
