"""Scan and replay jobs: the slow path, for files that nobody has sequenced.

The jobs find these journal files and have them sequenced.

The control plane decides what to look at, and leases it as jobs. The agent that does a job may crash, be late or race
the agent that wrote the files: batches that are sequenced already stay as they are.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

import structlog

from braidlog.control.interface import (
    CommitObject,
    ControlPlane,
    ReplayDone,
    ReplayTask,
    ScanDone,
    ScanTask,
    SequenceName,
    TakenJob,
)
from braidlog.jobs.executor import RunningJob, UnknownJob
from braidlog.jobs.output import Completion
from braidlog.objects.format import CorruptObject, StoredFooter, encode_tail, read_stored_footer
from braidlog.objects.keys import (
    JOURNAL_PREFIX,
    SLOTS_IN_FLIGHT_MAX,
    SLOTS_PER_SEQUENCE_MAX,
    InvalidKey,
    JournalKey,
    journal_key,
    parse_journal_key,
    sequence_prefix,
)
from braidlog.objects.layout import NONCE_BYTES, Footer
from braidlog.objects.store import AlreadyExists, NotFound, Store, StoreError
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import Remedy
from braidlog.writing.sequencing import commit_until

log = structlog.get_logger(__name__)

LIST_KEYS_MAX = 1_000
TAILS_AT_ONCE_MAX = 16
"""How many ends of files are read ahead of those that are being sequenced."""
COMMITS_AT_ONCE_MAX = 8
"""How many files of a journal sequence are committed at once, in their order."""
SEAL_ROUNDS_MAX = 100
COMMIT_DEADLINE_S = 30.0
SEQUENCES_PER_SCAN_MAX = 100_000
"""The most that one scan reports. The next scan continues there, because these are known then."""


class NotSealed(StoreError):
    """A journal sequence could not be sealed, because its writer fills it faster."""

    remedy = Remedy.RETRY


class JournalExecutor:
    """Does `scan` and `replay` jobs for a `Worker`."""

    def __init__(
        self, control: ControlPlane, store: Store, clock: Clock, entropy: Entropy, *, incarnation: str
    ) -> None:
        self._control = control
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._incarnation = incarnation

    def start(self, jobs: Sequence[TakenJob]) -> Sequence[RunningJob]:
        return [RunningJob(job, asyncio.ensure_future(self.run(job))) for job in jobs]

    async def run(self, job: TakenJob) -> Completion:
        if job.task.scan is not None:
            return Completion(scan=await self.scan(job.task.scan))
        if job.task.replay is not None:
            return Completion(replay=await self.replay(job.task.replay))
        raise UnknownJob(
            f"a job of kind {job.task.kind!r}", help="Check that agents and control plane run the same release."
        )

    # ── scans ──

    async def scan(self, task: ScanTask) -> ScanDone:
        """Find journal sequences that the control plane does not know.

        It takes at most one LIST for each incarnation and each unknown sequence, however many files they have.
        """
        found: list[SequenceName] = []
        after: str | None = None
        while len(found) < SEQUENCES_PER_SCAN_MAX:
            page = await self._store.list(JOURNAL_PREFIX, after=after, limit=LIST_KEYS_MAX)
            for meta in page.objects:
                if after is not None and meta.key <= after:
                    continue
                file = _file_named(meta.key)
                if file is None:
                    after = meta.key
                    continue
                known_below = task.known_below.get(file.incarnation, 0)
                if file.sequence < known_below:
                    after = _last_key(file.incarnation, known_below - 1)
                else:
                    found.append(SequenceName(file.incarnation, file.sequence))
                    after = _last_key(file.incarnation, file.sequence)
            if page.next_after is None:
                break
        return ScanDone(found)

    # ── replays ──

    async def replay(self, task: ReplayTask) -> ReplayDone:
        """Have all files of a journal sequence sequenced.

        The sequence is sealed first if the task says so.
        """
        fences = await self._seal(task) if task.seal else set()
        listed = await self._list(task)
        fences.update(await self._commit_all(task, [slot for slot in listed if slot not in fences]))
        return ReplayDone(task.incarnation, task.number, task.seal, listed, sorted(fences & set(listed)))

    async def _list(self, task: ReplayTask) -> list[int]:
        """The slots with files, in order, without those that are known to be sequenced."""
        prefix = sequence_prefix(task.incarnation, task.number)
        after = journal_key(task.incarnation, task.number, task.watermark - 1) if task.watermark else None
        slots: list[int] = []
        while True:
            page = await self._store.list(prefix, after=after, limit=LIST_KEYS_MAX)
            files = [_file_named(meta.key) for meta in page.objects]
            slots.extend(file.slot for file in files if file is not None and not _is_known(task, file.slot))
            if page.next_after is None:
                return slots
            after = page.next_after

    async def _commit(self, task: ReplayTask, slot: int, stored: StoredFooter) -> None:
        key = journal_key(task.incarnation, task.number, slot)
        verdict = await commit_until(
            self._control,
            CommitObject(key, stored.object_size, stored.footer_bytes, replayed=True),
            self._clock,
            self._entropy,
            deadline_s=self._clock.monotonic_s() + COMMIT_DEADLINE_S,
        )
        if verdict.error_code:
            raise CorruptObject(f"{key} was refused: {verdict.error_message}", help="This should be reported.")

    async def _commit_all(self, task: ReplayTask, slots: Sequence[int]) -> list[int]:
        """Have these files sequenced, in order.

        Returns the slots that turn out to be fences.
        """
        loop = asyncio.get_running_loop()
        rest = deque(slots)
        ahead: deque[tuple[int, asyncio.Task[StoredFooter | CorruptObject | None]]] = deque()
        committing: deque[asyncio.Task[None]] = deque()
        fences: list[int] = []
        errors: list[CorruptObject] = []
        try:
            while rest or ahead:
                while rest and len(ahead) < TAILS_AT_ONCE_MAX:
                    slot = rest.popleft()
                    ahead.append((slot, loop.create_task(self._tail(task, slot))))
                stored = await ahead[0][1]
                slot, _ = ahead.popleft()
                if isinstance(stored, CorruptObject):
                    errors.append(stored)
                elif stored is None:
                    continue  # swept meanwhile, so it was sequenced long ago
                elif stored.footer.extents:
                    if len(committing) >= COMMITS_AT_ONCE_MAX:
                        await committing.popleft()
                    committing.append(loop.create_task(self._commit(task, slot, stored)))
                else:
                    fences.append(slot)
            while committing:
                await committing.popleft()
        finally:
            left = [*(reading for _, reading in ahead), *committing]
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        if errors:
            # All others are sequenced. This file and its journal sequence stay until somebody has looked at them.
            raise errors[0]
        return fences

    async def _tail(self, task: ReplayTask, slot: int) -> StoredFooter | CorruptObject | None:
        key = journal_key(task.incarnation, task.number, slot)
        try:
            return await read_stored_footer(self._store, key)
        except NotFound:
            return None
        except CorruptObject as error:
            log.error("a journal file cannot be read", key=key, error=str(error), help=error.help)
            return error

    # ── seals ──

    async def _seal(self, task: ReplayTask) -> set[int]:
        """Seal a journal sequence: return when no file can appear in it any more.

        Returns the slots that we fenced.

        Its writer never goes further than the window past a slot that it has not filled itself. So no file can appear
        beyond the window after the lowest fence. While a fence is being put, the writer may still move on: only an
        existing fence fixes the window.
        """
        fences: set[int] = set()
        for _ in range(SEAL_ROUNDS_MAX):
            listed = set(await self._list(task))
            empty = [
                slot
                for slot in range(task.watermark, SLOTS_PER_SEQUENCE_MAX)
                if slot not in listed and not _is_known(task, slot)
            ]
            start = min([*fences, *empty[:1]], default=SLOTS_PER_SEQUENCE_MAX)
            window = [slot for slot in empty if slot < start + SLOTS_IN_FLIGHT_MAX]
            if not window:
                return fences
            outcomes = await asyncio.gather(*(self._fence(task, slot) for slot in window))
            fences.update(slot for slot, is_fenced in zip(window, outcomes, strict=True) if is_fenced)
        raise NotSealed(
            f"sequence {task.number} of {task.incarnation} could not be sealed", help="It will be tried again."
        )

    async def _fence(self, task: ReplayTask, slot: int) -> bool:
        """Put a fence into a slot.

        Returns False if a file, or somebody else's fence, came first.
        """
        fence = encode_tail(
            Footer(self._entropy.token(NONCE_BYTES), 0, self._incarnation, self._clock.wall_ms(), "", [])
        )
        try:
            await self._store.put(journal_key(task.incarnation, task.number, slot), fence)
        except AlreadyExists:
            return False
        return True


def _file_named(key: str) -> JournalKey | None:
    try:
        return parse_journal_key(key)
    except InvalidKey:
        log.warning("an object among the journals is not a journal file", key=key)
        return None


def _last_key(incarnation: str, sequence: int) -> str:
    """The last key that a file of the journal sequence can have."""
    return journal_key(incarnation, sequence, SLOTS_PER_SEQUENCE_MAX - 1)


def _is_known(task: ReplayTask, slot: int) -> bool:
    return slot < task.watermark or any(start <= slot < end for start, end in task.known)
