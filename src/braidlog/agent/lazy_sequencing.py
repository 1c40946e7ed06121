"""The last stage of journaled topics: acknowledges at once what is in the journal, and then has it sequenced."""

import asyncio
from dataclasses import dataclass

import structlog
from kio.schema.errors import ErrorCode

from braidlog.agent.sequencing import REPEATED, commit_until
from braidlog.agent.unsequenced import Partition, Unsequenced
from braidlog.control.interface import CommitObject, ControlPlane
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError
from braidlog.runtime.tasks import TaskGroup
from braidlog.writing.request import Draft

log = structlog.get_logger(__name__)

UNKNOWN_BASE_OFFSET = 0
"""What a producer is told that is acknowledged before its records have offsets."""
FILES_PENDING_MAX = 1_000
FOOTER_BYTES_PENDING_MAX = 64 * 1024 * 1024
"""Past either, a file is left to the slow path at once."""


@dataclass(frozen=True, slots=True)
class LazyStatistics:
    sequenced: int
    """Files that this agent had sequenced itself."""
    left: int
    """Files that it left to the slow path."""
    pending: int
    pending_bytes: int
    """Of footers."""


class LazySequencing:
    """The order of arrival is kept as long as the control plane answers. What it does not take in time stays where it
    is: whoever replays the sequence finds it."""

    def __init__(
        self,
        control: ControlPlane,
        clock: Clock,
        entropy: Entropy,
        *,
        deadline_s: float,
        unsequenced: Unsequenced,
    ) -> None:
        self._control = control
        self._clock = clock
        self._entropy = entropy
        self._deadline_s = deadline_s
        self._unsequenced = unsequenced
        self._tasks = TaskGroup("lazy sequencing")
        self._sequenced = self._left = self._pending_bytes = 0

    def statistics(self) -> LazyStatistics:
        return LazyStatistics(self._sequenced, self._left, len(self._tasks), self._pending_bytes)

    def submit(self, draft: Draft) -> None:
        request = CommitObject(draft.key, len(draft.packed), draft.footer)
        partitions = {partition: len(requests) for partition, requests in draft.groups.items()}
        self._acknowledge(draft)
        if len(self._tasks) >= FILES_PENDING_MAX or self._pending_bytes >= FOOTER_BYTES_PENDING_MAX:
            self._left += 1
            draft.settle()
            self._unsequenced.left(partitions)
            return
        deadline_s = self._clock.monotonic_s() + self._deadline_s
        self._tasks.spawn(self._sequence(draft, request, partitions, deadline_s))

    def _acknowledge(self, draft: Draft) -> None:
        draft.answered()
        groups, draft.groups = draft.groups, {}
        for requests in groups.values():
            for request in requests:
                request.error_code = ErrorCode.none
                request.base_offset = UNKNOWN_BASE_OFFSET
                request.on_done(request)

    async def _sequence(
        self, draft: Draft, request: CommitObject, partitions: dict[Partition, int], deadline_s: float
    ) -> None:
        self._pending_bytes += len(request.footer)
        is_sequenced = False
        try:
            await draft.wait_turn()
            verdict = await commit_until(self._control, request, self._clock, self._entropy, deadline_s=deadline_s)
            is_sequenced = verdict.error_code == ErrorCode.none
            if not is_sequenced:
                log.error("a journal's file was refused", key=request.key, reason=verdict.error_message)
        except BraidError as error:
            if error.remedy in REPEATED:
                # Counted, and not told of each: in an outage there are dozens a second.
                log.debug("a journal's file is left to be replayed", key=request.key, error=str(error))
            else:
                log.error("a journal's file was refused", key=request.key, error=str(error), help=error.help)
        finally:
            self._pending_bytes -= len(request.footer)
            self._sequenced += is_sequenced
            self._left += not is_sequenced
            draft.settle()
            (self._unsequenced.sequenced if is_sequenced else self._unsequenced.left)(partitions)

    async def finish(self, timeout_s: float) -> None:
        """Return when all is sequenced, or the time is up: what is left will be replayed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._tasks.wait_all()
        except TimeoutError:
            await self._tasks.cancel_all()
