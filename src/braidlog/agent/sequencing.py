"""The sequence stage: hands an uploaded object's footer to the control plane, which gives its batches their offsets."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import structlog
from kio.schema.errors import ErrorCode

from braidlog.control.interface import CommitObject, ControlPlane, ObjectVerdict
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, ControlAway, ControlUnavailable, DeadlineExceeded, Remedy
from braidlog.runtime.tasks import TaskGroup
from braidlog.writing.pulling import OrderLost
from braidlog.writing.request import Draft

log = structlog.get_logger(__name__)

TakeOver: TypeAlias = Callable[[Draft], Awaitable[bool]]

BACKOFF_S_FIRST = 0.05
BACKOFF_S_MAX = 2.0

REPEATED = frozenset({Remedy.RETRY, Remedy.CHECK_OUTCOME})


async def commit_until(
    control: ControlPlane, request: CommitObject, clock: Clock, entropy: Entropy, *, deadline_s: float
) -> ObjectVerdict:
    """Commits are idempotent by object, so one that got no answer, or may succeed later, is repeated until its
    deadline."""
    backoff_s = BACKOFF_S_FIRST
    while True:
        remaining_s = deadline_s - clock.monotonic_s()
        if remaining_s <= 0:
            raise ControlUnavailable("no time is left for it")
        try:
            return await control.commit_object(request, timeout_s=max(remaining_s / 2, 0.001))
        except ControlAway:
            raise  # it would be known if it were back
        except BraidError as error:
            pause_s = entropy.uniform(0.0, backoff_s)
            if error.remedy not in REPEATED or clock.monotonic_s() + pause_s >= deadline_s:
                raise
            await clock.sleep(pause_s)
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)


class Sequencing:
    """Acknowledges when the control plane has answered."""

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
        """`take_over` may see to a draft that the control plane gave no answer to, and says whether it does."""
        self._control = control
        self._clock = clock
        self._entropy = entropy
        self._deadline_s = deadline_s
        self._tasks = tasks
        self._take_over = take_over

    def submit(self, draft: Draft) -> None:
        # The time runs from here on: those that stand in line behind one another must not add up their waits.
        self._tasks.spawn(self._sequence(draft, self._clock.monotonic_s() + self._deadline_s))

    async def _sequence(self, draft: Draft, deadline_s: float) -> None:
        try:
            await draft.wait_turn()
            verdict = await self._commit(draft, deadline_s)
        except (ControlUnavailable, DeadlineExceeded) as error:
            if self._take_over is not None and await self._take_over(draft):
                return
            # It may have been sequenced all the same: only the producer's own sequence numbers can tell.
            draft.fail(ErrorCode.not_enough_replicas_after_append, f"the control plane did not answer: {error}")
        except OrderLost as error:
            draft.fail(ErrorCode.not_enough_replicas, f"it was not sequenced: {error}")
        except BraidError as error:
            log.error("object refused", key=draft.key, error=str(error), help=error.help)
            # A producer gives up what it is told not to send again, and whatever ails the metadata is not its fault.
            is_final = error.remedy is Remedy.FIX_INPUT
            code = ErrorCode.unknown_server_error if is_final else ErrorCode.not_enough_replicas_after_append
            draft.fail(code, f"the control plane refused the object: {error}")
        except asyncio.CancelledError:
            draft.fail(ErrorCode.not_enough_replicas_after_append, "the agent is stopping")
            raise
        else:
            self._acknowledge(draft, verdict)

    async def _commit(self, draft: Draft, deadline_s: float) -> ObjectVerdict:
        request = CommitObject(draft.key, len(draft.packed), draft.footer)
        return await commit_until(self._control, request, self._clock, self._entropy, deadline_s=deadline_s)

    def _acknowledge(self, draft: Draft, verdict: ObjectVerdict) -> None:
        if verdict.error_code != ErrorCode.none:
            log.warning("object refused", key=draft.key, code=verdict.error_code, reason=verdict.error_message)
            draft.fail(verdict.error_code, verdict.error_message)
            return
        # Successors may go on before the answers are written: their order is settled.
        draft.settle()
        for requests, extent in zip(draft.groups.values(), verdict.extents, strict=True):
            log_start_offset = extent.log_start_offset
            for request, batch in zip(requests, extent.verdicts, strict=True):
                request.error_code = batch.error_code
                request.base_offset = batch.base_offset
                request.log_start_offset = log_start_offset
                request.on_done(request)
