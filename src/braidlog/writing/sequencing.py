"""The sequence stage: sends each object's footer to the control plane.

The control plane gives the batches their offsets.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import structlog
from kio.schema.errors import ErrorCode

from braidlog.control.interface import CommitObject, ControlPlane, ObjectVerdict
from braidlog.runtime.backoff import Backoff
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, ControlAway, ControlUnavailable, DeadlineExceeded, Remedy
from braidlog.runtime.tasks import TaskGroup
from braidlog.writing.order_node import OrderLost
from braidlog.writing.request import Draft

log = structlog.get_logger(__name__)

TakeOver: TypeAlias = Callable[[Draft], Awaitable[bool]]

COMMIT_BACKOFF = Backoff(first_s=0.05, max_s=2.0)

CONGESTED_SHARE = 1 / 4
"""The part of the time for sequencing after which the path is congested. If an object has waited for so long, or a new
one would have to, no others are closed. Each waits for those before it, so a queue that grows faster than it is worked
off would soon take longer than each object's time."""
COMMIT_S_WEIGHT = 0.3
"""The weight of the newest commit in the average time of a commit."""
TIMEOUTS_LOG_INTERVAL_S = 10.0

REPEATED = frozenset({Remedy.RETRY, Remedy.CHECK_OUTCOME})


async def commit_until(
    control: ControlPlane, request: CommitObject, clock: Clock, entropy: Entropy, *, deadline_s: float
) -> ObjectVerdict:
    """Commit an object.

    Repeat the call until the deadline if it got no answer, or may succeed later.

    Repeating is safe: commits are idempotent by object.
    """
    failures = 0
    while True:
        remaining_s = deadline_s - clock.monotonic_s()
        if remaining_s <= 0:
            raise ControlUnavailable("no time is left for it")
        try:
            return await control.commit_object(request, timeout_s=max(remaining_s / 2, 0.001))
        except ControlAway:
            raise  # it would be known if it were back
        except BraidError as error:
            pause_s = COMMIT_BACKOFF.pause_s(failures, entropy)
            if error.remedy not in REPEATED or clock.monotonic_s() + pause_s >= deadline_s:
                raise
            await clock.sleep(pause_s)
            failures += 1


class StillInLine(ControlUnavailable):
    """An object's time ran out before all earlier ones were sequenced.

    It was not sequenced itself.
    """


async def wait_predecessors(draft: Draft, clock: Clock, deadline_s: float) -> None:
    """Return when everything before the draft is sequenced, or never will be."""
    try:
        async with asyncio.timeout(max(0.0, deadline_s - clock.monotonic_s())):
            await draft.wait_predecessors()
    except TimeoutError:
        raise StillInLine("the objects before it were not sequenced in time", help="Send it again.") from None


class _Timeouts:
    """Logs late commits and what they waited for.

    It does not do so more often than every few seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_s = -TIMEOUTS_LOG_INTERVAL_S
        self._unlogged = 0

    def note(self, draft: Draft, *, in_line_s: float, asked_s: float, line_count: int, error: BraidError) -> None:
        self._unlogged += 1
        now_s = self._clock.monotonic_s()
        if now_s - self._logged_s < TIMEOUTS_LOG_INTERVAL_S:
            return
        log.warning(
            "objects were not sequenced in time",
            waited_for="objects before it" if in_line_s >= asked_s else "the control plane",
            in_line_s=round(in_line_s, 3),
            asked_s=round(asked_s, 3),
            objects_in_line=line_count,
            count=self._unlogged,
            key=draft.key,
            error=str(error),
        )
        self._logged_s, self._unlogged = now_s, 0


class Sequencing:
    """Acknowledges a draft's requests when the control plane has answered."""

    def __init__(
        self,
        control: ControlPlane,
        clock: Clock,
        entropy: Entropy,
        *,
        deadline_s: float,
        tasks: TaskGroup,
        take_over: TakeOver | None = None,
    ) -> None:
        """`take_over` gets drafts without an answer of the control plane.

        It returns whether it deals with them.
        """
        self._control = control
        self._clock = clock
        self._entropy = entropy
        self._deadline_s = deadline_s
        self._tasks = tasks
        self._take_over = take_over
        self._timeouts = _Timeouts(clock)
        self._since_s: dict[Draft, float] = {}
        """When each unsequenced object arrived here, the oldest first."""
        self._commit_s = 0.0
        """The recent average time of a commit."""

    @property
    def is_congested(self) -> bool:
        """Whether so many objects wait to be sequenced that no others should follow them."""
        waited_s = self._clock.monotonic_s() - next(iter(self._since_s.values()), math.inf)
        return max(waited_s, len(self._since_s) * self._commit_s) >= CONGESTED_SHARE * self._deadline_s

    def submit(self, draft: Draft) -> None:
        # The time runs from here on: objects that wait for one another must not add up their waits.
        self._since_s[draft] = self._clock.monotonic_s()
        self._tasks.spawn(self._sequence_one(draft)).add_done_callback(lambda _: self._since_s.pop(draft))

    async def _sequence_one(self, draft: Draft) -> None:
        asked_s = math.inf
        deadline_s = self._since_s[draft] + self._deadline_s
        try:
            await wait_predecessors(draft, self._clock, deadline_s)
            asked_s = self._clock.monotonic_s()
            verdict = await self._commit(draft, deadline_s)
        except (ControlUnavailable, DeadlineExceeded) as error:
            self._note_timeout(draft, asked_s, error)
            if self._take_over is not None and await self._take_over(draft):
                return
            if isinstance(error, StillInLine):
                draft.fail(ErrorCode.not_enough_replicas, str(error))
                return
            # It may be sequenced all the same: only the producer's own sequence numbers can tell.
            draft.fail(ErrorCode.not_enough_replicas_after_append, f"the control plane did not answer: {error}")
        except OrderLost as error:
            if self._take_over is not None and await self._take_over(draft):
                return
            draft.fail(ErrorCode.not_enough_replicas, f"it was not sequenced: {error}")
        except BraidError as error:
            log.error("object refused", key=draft.key, error=str(error), help=error.help)
            # A producer drops a batch on a final error, and trouble with the metadata is not its fault.
            is_final = error.remedy is Remedy.FIX_INPUT
            code = ErrorCode.unknown_server_error if is_final else ErrorCode.not_enough_replicas_after_append
            draft.fail(code, f"the control plane refused the object: {error}")
        except asyncio.CancelledError:
            draft.fail(ErrorCode.not_enough_replicas_after_append, "the agent is stopping")
            raise
        else:
            self._commit_s += COMMIT_S_WEIGHT * (self._clock.monotonic_s() - asked_s - self._commit_s)
            self._acknowledge(draft, verdict)

    def _note_timeout(self, draft: Draft, asked_s: float, error: BraidError) -> None:
        since_s, now_s = self._since_s[draft], self._clock.monotonic_s()
        turn_s = min(asked_s, now_s)
        line_count = len(self._since_s)
        self._timeouts.note(
            draft, in_line_s=turn_s - since_s, asked_s=now_s - turn_s, line_count=line_count, error=error
        )

    async def _commit(self, draft: Draft, deadline_s: float) -> ObjectVerdict:
        request = CommitObject(draft.key, len(draft.packed), draft.footer)
        return await commit_until(self._control, request, self._clock, self._entropy, deadline_s=deadline_s)

    def _acknowledge(self, draft: Draft, verdict: ObjectVerdict) -> None:
        if verdict.error_code != ErrorCode.none:
            log.warning("object refused", key=draft.key, code=verdict.error_code, reason=verdict.error_message)
            draft.fail(verdict.error_code, verdict.error_message)
            return
        # Successors may go on before the results are passed back: their order is settled.
        draft.settle()
        for requests, extent in zip(draft.partitions.values(), verdict.extents, strict=True):
            log_start_offset = extent.log_start_offset
            for request, batch in zip(requests, extent.verdicts, strict=True):
                request.error_code = batch.error_code
                request.base_offset = batch.base_offset
                request.log_start_offset = log_start_offset
                request.way_back(request)
