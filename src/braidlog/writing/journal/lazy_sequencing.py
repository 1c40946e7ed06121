"""The last stage of journaled topics: acknowledges, then has files sequenced.

A file's requests are acknowledged at once.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog
from kio.schema.errors import ErrorCode

from braidlog.control.interface import CommitObject, ControlPlane
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError
from braidlog.runtime.tasks import TaskGroup
from braidlog.writing.journal.unsequenced import Unsequenced
from braidlog.writing.order_node import OrderLost
from braidlog.writing.request import Draft
from braidlog.writing.sequencing import REPEATED, commit_until, wait_predecessors

log = structlog.get_logger(__name__)

UNKNOWN_BASE_OFFSET = 0
"""The offset in an acknowledgement that is sent before the records have offsets."""
FILES_PENDING_MAX = 1_000
FOOTER_BYTES_PENDING_MAX = 64 * 1024 * 1024
"""Past either limit, a file is left to the slow path at once."""


@dataclass(frozen=True, slots=True)
class LazyStatistics:
    """Counters of the files that were to be sequenced after their acknowledgement."""

    sequenced: int
    """Files that took the fast path: this agent had them sequenced."""
    left: int
    """Files that this agent left to the slow path."""
    pending: int
    pending_bytes: int
    """Bytes of the footers of pending files."""


class JournalFile(Protocol):
    """A stored file, for those who want to know how far it is."""

    def handed_over(self) -> None:
        """It is on its way to the control plane: files behind it may follow."""
        ...

    def sequenced(self) -> None: ...

    def left(self) -> None:
        """This agent could not have it sequenced. A replay will."""
        ...


class OwnFile:
    """A file with this shard's own requests only."""

    def __init__(self, draft: Draft, unsequenced: Unsequenced) -> None:
        self._draft = draft
        self._unsequenced = unsequenced
        self._partitions = {partition: len(requests) for partition, requests in draft.partitions.items()}

    def handed_over(self) -> None:
        self._draft.settle()

    def sequenced(self) -> None:
        self._unsequenced.sequenced(self._partitions)

    def left(self) -> None:
        self._draft.settle()
        self._unsequenced.left(self._partitions)


class TakenOverFile(OwnFile):
    """A file with this shard's own requests from the classic path.

    The control plane went away before they were sequenced. Others behind them are still on it. They wait until the
    file is sequenced, and are refused if it is left.
    """

    def __init__(self, draft: Draft, unsequenced: Unsequenced) -> None:
        super().__init__(draft, unsequenced)
        for partition, count in self._partitions.items():
            for _ in range(count):
                unsequenced.add(partition)

    def handed_over(self) -> None:
        """Let nothing follow yet."""

    def sequenced(self) -> None:
        self._draft.settle()
        super().sequenced()

    def left(self) -> None:
        # First of all, so that nothing new follows on the classic path.
        self._unsequenced.left(self._partitions)
        self._draft.leave_behind()


class LazySequencing:
    """Keeps the order of arrival as long as the control plane answers.

    Files that it does not take in time stay in the journal, where a replay finds them.

    Files are sent to the control plane in their order, and none waits for the answer to the one before it. Nothing
    slows their producers down, so if each file waited for an answer, the queue would grow until all were left behind.
    """

    def __init__(
        self,
        control: ControlPlane,
        clock: Clock,
        entropy: Entropy,
        *,
        deadline_s: float,
        open_file: Callable[[Draft], JournalFile],
    ) -> None:
        """`open_file` gets each stored draft before its requests are acknowledged."""
        self._control = control
        self._clock = clock
        self._entropy = entropy
        self._deadline_s = deadline_s
        self._open_file = open_file
        self._tasks = TaskGroup("lazy sequencing")
        self._sequenced = self._left = self._pending_bytes = 0

    def statistics(self) -> LazyStatistics:
        return LazyStatistics(self._sequenced, self._left, len(self._tasks), self._pending_bytes)

    def submit(self, draft: Draft) -> None:
        self.follow(draft, self._open_file(draft))

    def follow(self, draft: Draft, file: JournalFile) -> None:
        """Acknowledge the requests of a stored draft, and have it sequenced."""
        request = CommitObject(draft.key, len(draft.packed), draft.footer)
        self._acknowledge(draft)
        if len(self._tasks) >= FILES_PENDING_MAX or self._pending_bytes >= FOOTER_BYTES_PENDING_MAX:
            self._left += 1
            file.left()
            return
        deadline_s = self._clock.monotonic_s() + self._deadline_s
        self._tasks.spawn(self._sequence(draft, request, file, deadline_s))

    def _acknowledge(self, draft: Draft) -> None:
        draft.answered()
        partitions, draft.partitions = draft.partitions, {}
        for requests in partitions.values():
            for request in requests:
                request.error_code = ErrorCode.none
                request.base_offset = UNKNOWN_BASE_OFFSET
                request.way_back(request)

    async def _sequence(self, draft: Draft, request: CommitObject, file: JournalFile, deadline_s: float) -> None:
        self._pending_bytes += len(request.footer)
        is_sequenced = False
        try:
            try:
                await wait_predecessors(draft, self._clock, deadline_s)
            except OrderLost:
                pass  # A shard died with its connections. Sequence numbers keep the order of idempotent producers.
            # Files behind this one may follow once it is on its way.
            asyncio.get_running_loop().call_soon(file.handed_over)
            verdict = await commit_until(self._control, request, self._clock, self._entropy, deadline_s=deadline_s)
            is_sequenced = verdict.error_code == ErrorCode.none
            if not is_sequenced:
                log.error("journal file refused", key=request.key, reason=verdict.error_message)
        except BraidError as error:
            if error.remedy in REPEATED:
                # Counted, but not logged one by one: in an outage there are dozens a second.
                log.debug("journal file left to be replayed", key=request.key, error=str(error))
            else:
                log.error("journal file refused", key=request.key, error=str(error), help=error.help)
        finally:
            self._pending_bytes -= len(request.footer)
            self._sequenced += is_sequenced
            self._left += not is_sequenced
            (file.sequenced if is_sequenced else file.left)()

    async def finish(self, timeout_s: float) -> None:
        """Return when all files are sequenced, or the time is up.

        The rest will be replayed.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._tasks.wait_all()
        except TimeoutError:
            await self._tasks.cancel_all()
