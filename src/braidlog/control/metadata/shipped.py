"""Metadata whose copy flows to the bucket.

Every transaction is recorded. The records are shipped as increments, at an interval or at once if somebody waits for
them. If the machine is lost, a restore starts from the newest snapshot and the increments behind it.

A restore fences whoever still runs with the old metadata. So answers are given only within a lease: it begins with a
look that found no restore, and a restore waits until all leases are over.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import structlog

from braidlog.control.metadata.connection import newest_schema
from braidlog.control.metadata.copies import CopyLog
from braidlog.control.metadata.counters import read_counter
from braidlog.control.metadata.image import encode_snapshot
from braidlog.control.metadata.increments import (
    Increment,
    RecordingTransaction,
    Statement,
    copy_snapshot_key,
    count_transaction,
    encode_increment,
    increment_key,
    must_be_copied,
    read_position,
)
from braidlog.control.metadata.progress import Progress
from braidlog.control.metadata.store import (
    DumpedMetadata,
    MetadataDamaged,
    MetadataError,
    MetadataUnavailable,
    SharedMetadata,
    Transaction,
)
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, Fenced
from braidlog.runtime.tasks import TaskGroup
from braidlog.runtime.waiters import Waiters

T = TypeVar("T")

_log = structlog.get_logger(__name__)

RESTORE_NUMBER = "restore_number"
"""The counter with the restore that made this metadata; 0: none did."""
LEASE_S = 15.0
"""How long after a look that found no restore this process may answer. A restore waits longer than that."""
LOOK_INTERVAL_S = 5.0
SNAPSHOT_INCREMENTS = 1_000
SNAPSHOT_BYTES = 64 * 1024 * 1024
"""Make a snapshot when this much lies behind the last one."""
PENDING_BYTES_MAX = 64 * 1024 * 1024
"""If more waits to be shipped, because the store does not answer, a snapshot will replace it."""
INCREMENT_TRANSACTIONS_MAX = 5_000
AHEAD_MAX = 10_000
"""How many transactions may wait for the copy. Further ones are refused, so that memory does not run further ahead."""
_RETRY_S = 1.0
_NONCE_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Recorded:
    position: int
    statements: list[Statement]
    committed_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Planned:
    number: int
    inner_number: int
    """How many transactions of the metadata underneath must be durable."""
    position: int
    """What the copy must have; 0: nothing."""


class ShippedMetadata:
    """Implements `MetadataStore` and `CopiedMetadata` around another store."""

    def __init__(
        self, inner: DumpedMetadata, store: Store, clock: Clock, entropy: Entropy, *, interval_s: float
    ) -> None:
        """`interval_s` is how often the copy advances if nobody waits for it."""
        self._inner = inner
        self._copies = CopyLog(store, clock, entropy.fork("copy"))
        self._clock = clock
        self._entropy = entropy
        self._interval_s = interval_s
        self._pending: deque[_Recorded] = deque()
        self._pending_bytes = 0
        self._restore = 0
        self._position = 0
        """The position of the newest transaction that this process knows to be committed."""
        self._copied_position = -1
        """Everything up to this position is in the bucket; -1: not known yet."""
        self._number = 0
        """The number of the next increment; 0: not known yet."""
        self._needs_snapshot = False
        self._increments_behind = 0
        self._bytes_behind = 0
        self._snapshots: list[int] = []
        self._wanted = asyncio.Event()
        self._moved = Waiters()
        self._tasks = TaskGroup("copy of the metadata")
        self._proof: asyncio.Task[None] | None = None
        self._proofs = TaskGroup("looks for restores", errors_are_awaited=True)
        self._proven_s = -LEASE_S
        self._is_enforced = False
        self._ended: Fenced | None = None
        self._trouble = ""
        self.progress = Progress()
        self._planned: deque[_Planned] = deque()
        """The transactions that are not known to be durable, in order."""
        self._settling: asyncio.Task[None] | None = None

    # ── the seam ──

    @property
    def fencing_epoch(self) -> int:
        return self._inner.fencing_epoch

    async def acquire_fencing_epoch(self) -> int:
        def look(tx: Transaction) -> tuple[int, int]:
            return read_counter(tx, RESTORE_NUMBER), read_position(tx)

        epoch = await self._inner.acquire_fencing_epoch()
        self._restore, self._position = await self._inner.read(look)
        self._tasks.spawn(self._ship_for_ever())
        self._tasks.spawn(self._look_for_ever())
        return epoch

    async def plan(self, fn: Callable[[Transaction], T]) -> T:
        def record(tx: Transaction) -> tuple[T, int, list[Statement]]:
            recording = RecordingTransaction(tx)
            result = fn(recording)
            position = count_transaction(tx) if recording.statements else 0
            return result, position, recording.statements

        await self._hold_lease()
        if self.progress.ahead >= AHEAD_MAX:
            raise MetadataError(
                f"{self.progress.ahead} transactions wait for the copy of the metadata ({self._trouble})",
                help="Nothing of this call was kept. Can the store be written?",
            )
        result, position, statements = await self._inner.plan(record)
        if position:
            self._take(position, statements)
        self._note_planned(position if position and must_be_copied(statements) else 0)
        return result

    def _note_planned(self, position: int) -> None:
        """Count a transaction, which is durable only when the copy has `position`."""
        number = self.progress.planned + 1
        self.progress.plan(number)
        planned = _Planned(number, self._inner.progress.planned, position)
        if self._planned or self._inner.progress.durable < planned.inner_number or position:
            self._planned.append(planned)
            if self._settling is None:
                self._settling = self._tasks.spawn(self._settle_planned())
        else:
            self.progress.reach(number)

    async def _settle_planned(self) -> None:
        """Note in order what is durable: stored by the metadata, and copied if it must be."""
        try:
            while self._planned:
                planned = self._planned[0]
                await self._inner.progress.wait_for(planned.inner_number)
                while self._copied_position < planned.position:
                    if self._ended is not None:
                        return
                    self._wanted.set()
                    await self._moved.wait()
                self._planned.popleft()
                self.progress.reach(planned.number)
        except BraidError as error:
            self.progress.end(error)
        finally:
            self._settling = None

    async def durable(self) -> None:
        await self._inner.durable()
        await self.progress.wait()
        await self._hold_lease()

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        result = await self.plan(fn)
        await self.durable()
        return result

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        await self._hold_lease()
        result = await self._inner.read(fn)
        await self._hold_lease()
        return result

    async def peek(self, fn: Callable[[Transaction], T]) -> T:
        return await self._inner.peek(fn)

    async def close(self) -> None:
        """Ship what is left, for a moment, and close."""
        try:
            async with asyncio.timeout(_RETRY_S):
                if self.fencing_epoch:
                    await self.copied()
        except (TimeoutError, BraidError) as error:
            _log.warning("the copy of the metadata lacks the last changes", error=str(error))
        self._ended = self._ended or Fenced("this control plane has stopped")
        self.progress.end(self._ended)
        self._moved.wake_all()
        await self._tasks.cancel_all()
        await self._proofs.cancel_all()
        await self._inner.close()

    # ── the lease ──

    def enforce_lease(self) -> None:
        self._is_enforced = True

    async def _hold_lease(self) -> None:
        """Return if no restore was there less than the lease ago; else look again."""
        if self._ended is not None:
            raise self._ended
        if not self._is_enforced or self._clock.boot_s() - self._proven_s < LEASE_S:
            return
        try:
            await self._look()
        except MetadataError as error:
            raise MetadataUnavailable(
                f"the store does not say whether the metadata was restored elsewhere ({error})", help=error.help
            ) from error

    async def _look(self) -> None:
        """Look for a later restore. Calls that come meanwhile share the look."""
        if self._proof is None or self._proof.done():
            self._proof = self._proofs.spawn(self._look_once())
        await asyncio.shield(self._proof)

    async def _look_once(self) -> None:
        began_s = self._clock.boot_s()
        if await self._copies.is_replaced(self._restore):
            raise self._end(
                Fenced(
                    f"this metadata was replaced by a restore, number {self._restore + 1} or later",
                    help="Stop this control plane. Start one with the restored metadata.",
                )
            )
        self._proven_s = max(self._proven_s, began_s)

    async def _look_for_ever(self) -> None:
        while self._ended is None:
            try:
                await self._look()
            except Fenced:
                return
            except MetadataError as error:
                _log.warning("cannot look for restores", error=str(error), help=error.help)
            await self._clock.sleep(LOOK_INTERVAL_S)

    def _end(self, error: Fenced) -> Fenced:
        self._ended = error
        self.progress.end(error)
        if isinstance(self._inner, SharedMetadata):
            self._inner.lost.set()
        self._moved.wake_all()
        return error

    # ── the copy ──

    @property
    def copy_age_s(self) -> float:
        return self._clock.boot_s() - self._pending[0].committed_s if self._pending else 0.0

    @property
    def copy_position(self) -> int:
        return self._copied_position

    @property
    def copy_trouble(self) -> str:
        return self._trouble

    def _take(self, position: int, statements: list[Statement]) -> None:
        """Keep a committed transaction until it is shipped."""
        if position <= self._position:
            # Its outcome was unknown, and others came first. Increments are in order, so a snapshot must have it.
            self._needs_snapshot = True
            return
        if position != self._position + 1:
            self._needs_snapshot = True  # the outcome of one before was unknown, and it was kept
        self._position = position
        size_bytes = sum(len(rows) * 64 + len(sql) for sql, rows in statements)
        self._pending.append(_Recorded(position, statements, self._clock.boot_s(), size_bytes))
        self._pending_bytes += size_bytes
        if self._pending_bytes > PENDING_BYTES_MAX:
            self._drop_pending(position)
            self._needs_snapshot = True

    def _drop_pending(self, end_position: int) -> None:
        """Forget records up to a position. The newest stays, for the age of the copy."""
        while self._pending and self._pending[0].position <= end_position:
            self._pending_bytes -= self._pending.popleft().size_bytes

    async def copied(self) -> None:
        target = self._position
        while self._copied_position < target:
            if self._ended is not None:
                raise self._ended
            self._wanted.set()
            await self._moved.wait()

    async def _ship_for_ever(self) -> None:
        while self._ended is None:
            try:
                await self._ship_once()
                self._trouble = ""
                await self._wait_wanted()
            except Fenced as error:
                self._end(error)
            except Exception as error:  # noqa: BLE001 - topics could never be changed again if this ended
                self._trouble = str(error)
                help_line = error.help if isinstance(error, BraidError) else ""
                _log.warning("the copy of the metadata does not advance", error=str(error), help=help_line)
                await self._clock.sleep(self._entropy.uniform(_RETRY_S / 2, _RETRY_S))

    async def _wait_wanted(self) -> None:
        """Return when the interval is over, or earlier if somebody waits for the copy."""
        pause = asyncio.ensure_future(self._clock.sleep(self._interval_s))
        wanted = asyncio.ensure_future(self._wanted.wait())
        try:
            await asyncio.wait([pause, wanted], return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            wanted.cancel()

    async def _ship_once(self) -> None:
        if self._number == 0:
            await self._find_end()
        self._wanted.clear()
        while self._pending or self._needs_snapshot:
            end_position = self._position
            await self._inner.durable()  # the copy must not have what the metadata may still lose
            if self._needs_snapshot or self._is_snapshot_due():
                await self._make_snapshot()
            else:
                await self._ship_increment(end_position)
        self._moved_to(max(self._position, self._copied_position))

    async def _find_end(self) -> None:
        """Find where the copy ends. If it lacks anything, a snapshot will follow."""
        found = await self._copies.objects(self._restore)
        end_position = -1
        if found.snapshots and found.increments:
            try:
                newest = await self._copies.read_increment(self._restore, found.increments[-1])
                end_position = newest.end_position - 1
            except MetadataDamaged as error:
                _log.error("the newest increment of the copy is damaged, a snapshot follows", reason=str(error))
        first_position = self._pending[0].position if self._pending else self._position + 1
        self._needs_snapshot |= end_position != first_position - 1
        self._snapshots = found.snapshots
        self._increments_behind = len(found.increments)
        self._number = found.next_number

    def _is_snapshot_due(self) -> bool:
        return self._increments_behind >= SNAPSHOT_INCREMENTS or self._bytes_behind >= SNAPSHOT_BYTES

    async def _ship_increment(self, end_position: int) -> None:
        """Ship the oldest transactions, up to a position."""
        oldest = islice(self._pending, INCREMENT_TRANSACTIONS_MAX)
        chosen = [each for each in oldest if each.position <= end_position]
        increment = Increment(
            chosen[0].position,
            newest_schema(),
            self._clock.wall_ms(),
            self._entropy.token(_NONCE_BYTES),
            [each.statements for each in chosen],
        )
        data = await asyncio.to_thread(encode_increment, increment)
        is_ours = await self._copies.write(increment_key(self._restore, self._number), data)
        self._number += 1
        if not is_ours:
            # A process that held this metadata before was slow to ship. A snapshot shows where the copy stands.
            self._needs_snapshot = True
            return
        self._increments_behind += 1
        self._bytes_behind += len(data)
        self._drop_pending(chosen[-1].position)
        self._moved_to(chosen[-1].position)

    async def _make_snapshot(self) -> None:
        position = self._position
        number = self._number
        # Transactions that are dropped or missed from here on are perhaps not in this snapshot, and need another one.
        self._needs_snapshot = False
        is_ours = False
        try:
            content = await self._inner.dump()
            data = await asyncio.to_thread(encode_snapshot, number, b"", content)
            await self._inner.durable()
            is_ours = await self._copies.write(copy_snapshot_key(self._restore, number), data)
        finally:
            self._needs_snapshot |= not is_ours
        if not is_ours:
            self._number += 1  # of an earlier holder
            return
        self._increments_behind = self._bytes_behind = 0
        self._drop_pending(position)
        self._moved_to(position)
        self._snapshots.append(number)
        if len(self._snapshots) > 1:
            # The snapshot before stays, with the increments behind it, in case the newest cannot be read.
            await self._copies.trim(self._restore, self._snapshots[-2])
            self._snapshots = self._snapshots[-2:]

    def _moved_to(self, position: int) -> None:
        self._copied_position = max(self._copied_position, position)
        self._moved.wake_all()


class ShippedSharedMetadata(ShippedMetadata):
    """The same around metadata that several processes can reach."""

    def __init__(
        self, inner: DumpedMetadata, store: Store, clock: Clock, entropy: Entropy, *, interval_s: float
    ) -> None:
        super().__init__(inner, store, clock, entropy, interval_s=interval_s)
        assert isinstance(inner, SharedMetadata)
        self._shared: SharedMetadata = inner
        self.lost = inner.lost

    async def wait_vacant(self, *, patient: bool, silent_s: float) -> None:
        await self._shared.wait_vacant(patient=patient, silent_s=silent_s)


def with_copy(
    inner: DumpedMetadata, store: Store, clock: Clock, entropy: Entropy, *, interval_s: float
) -> ShippedMetadata:
    """Return the metadata with a copy that flows to the store."""
    kind = ShippedSharedMetadata if isinstance(inner, SharedMetadata) else ShippedMetadata
    return kind(inner, store, clock, entropy, interval_s=interval_s)
