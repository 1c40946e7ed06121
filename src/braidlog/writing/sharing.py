"""The schedule stage of an agent with several shards: whose turn it is to upload what a group of them holds.

A shard that is a group of its own hands its requests to its own batcher: under full load shards share nothing, and pay
nothing for it. In a larger group requests are offered in shared memory, and the member whose turn it is pulls what all
of them hold into one object. Groups split and merge as `scheduling` decides, without any request changing its place in
the order: see `Order`.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from kio.schema.errors import ErrorCode

from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.tasks import TaskGroup
from braidlog.scheduling.budget import PutBudget
from braidlog.scheduling.closing import Close, CloseThresholds, Wait, decide_close
from braidlog.scheduling.groups import group_ids, members
from braidlog.scheduling.loads import GroupLoad, bytes_per_s_after, group_load, slots_used_at
from braidlog.scheduling.policy import Policy
from braidlog.scheduling.regrouping import RegroupThresholds
from braidlog.scheduling.turns import may_take_turn, takeover_s
from braidlog.writing.batcher import Batcher, BatcherStatistics
from braidlog.writing.offering import LoneDraft, Offering
from braidlog.writing.order import Order
from braidlog.writing.pulling import PulledDraft, Pulling
from braidlog.writing.regrouping import BoardLoads, GroupBudgets, GroupLocks, Regrouping
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.seat import Seat
from braidlog.writing.stage import DraftStage

log = structlog.get_logger(__name__)

TICK_S = 0.02
"""How often a group's first shard looks whether to split or merge, while there is anything to decide."""
TURN_S = 0.05
"""How long the others wait beyond the interval for one that has the turn and does not take it."""
LOCKED_RETRY_S = 0.001
HOUSEKEEPING_S = 0.5


@dataclass(frozen=True, slots=True)
class SharingStatistics:
    groups: int
    splits: int
    merges: int
    pulls: int
    pulled_bytes: int
    locks: int
    locks_missed: int


class Sharing:
    """One shard's part in the common work. Built around the shard's own batcher and upload stage."""

    def __init__(
        self,
        seat: Seat,
        batcher: Batcher,
        order: Order,
        next_stage: DraftStage,
        policy: Policy,
        thresholds: CloseThresholds,
        budget: PutBudget,
        clock: Clock,
        entropy: Entropy,
        *,
        incarnation: str,
        fence: Callable[[str], Awaitable[None]],
        wait_s_max: float,
        tasks: TaskGroup,
    ) -> None:
        """`budget` is the whole agent's; `batcher` has one shard's share of it."""
        self._seat = seat
        self._shard = seat.shard
        self._board = board = seat.board
        self._batcher = batcher
        self._next = next_stage
        self._order = order
        self.policy = policy
        self._thresholds = thresholds
        self._regroup_thresholds = RegroupThresholds(
            thresholds.size_bytes,
            thresholds.interval_s,
            thresholds.in_flight_max,
            backlog_bytes_per_shard_max=board.shape.arena_bytes // 2,
        )
        self._locks = GroupLocks(seat)
        self._budgets = GroupBudgets(board, budget)
        self._regrouping = Regrouping(board, self._shard, self._locks, self._budgets, self._regroup_thresholds, clock)
        self._clock = clock
        self._entropy = entropy
        self._wait_s_max = wait_s_max
        self._offer_bytes_max = min(board.shape.arena_bytes // 4, thresholds.size_bytes)
        self._said_bytes_max = thresholds.size_bytes // board.shard_count
        self._unsaid_bytes = 0
        self._arrived_bytes = 0
        """Since the shard last said how much arrives."""
        self._is_sharing = False
        self._shared_in_flight = 0
        self._news = False
        """Whether the shard that has the turn should hear of something."""
        self._pump_handle: asyncio.Handle | None = None
        self._pump_at_s = math.inf
        self._tick_handle: asyncio.Handle | None = None
        self._keeper_handle: asyncio.Handle | None = None
        self._rung: dict[int, None] = {}
        self._drained = asyncio.Event()
        self._pulls = 0
        self._pulled_bytes = 0
        self._offering = Offering(
            board,
            self._shard,
            order,
            clock,
            ring=self._ring_later,
            upload_alone=self._upload_alone,
            fence=fence,
            give_up_s=2 * wait_s_max,
            tasks=tasks,
        )
        self._pulling = Pulling(
            board, self._shard, incarnation, ring=self._ring_later, finish_own=self._offering.finish
        )

    # ── life ──

    def start(self) -> None:
        self._seat.listen(self._heard)
        self._board.set_serving(self._shard, True)
        self._keep_house()

    async def flush(self) -> None:
        """Take part no more: upload what is still this shard's own, and return when nothing of it is in other hands."""
        self._board.set_serving(self._shard, False)
        while self._is_sharing and not self._stop_sharing():
            await self._clock.sleep(LOCKED_RETRY_S)
        await self._batcher.flush()
        if not self._offering.is_empty:
            self._drained.clear()
            try:
                async with asyncio.timeout(self._wait_s_max):
                    await self._drained.wait()
            except TimeoutError:
                log.warning("batches in other shards' hands were not answered", count=self._offering.open_count)

    def close(self) -> None:
        for handle in (self._pump_handle, self._tick_handle, self._keeper_handle):
            if handle is not None:
                handle.cancel()

    def _keep_house(self) -> None:
        """Rare things that nobody rings for: requests that are overdue, shards that died, a sign of life."""
        self._board.set_seen_s(self._shard, self._clock.monotonic_s())
        if not self._offering.is_empty:
            self._offering.collect()
            self._refuse_overdue()
            self._look_drained()
        self._pulling.look_again()
        self._schedule(0.0)
        self._ensure_tick()
        loop = asyncio.get_running_loop()
        self._keeper_handle = loop.call_later(HOUSEKEEPING_S, self._keep_house)

    def _refuse_overdue(self) -> None:
        limit_s = self._clock.monotonic_s() - self._wait_s_max
        group = self._take_own_lock()
        if group is None:
            return
        try:
            refused = self._offering.withdraw(limit_s)
        finally:
            self._locks.give(group)
        for request in refused:
            request.fail(ErrorCode.not_enough_replicas, "the object store is too slow: all uploads are taken")

    def _take_own_lock(self) -> int | None:
        """The lock of the group that this shard is in, and stays in as long as it holds it."""
        group = self._board.group_of(self._shard)
        if not self._locks.take(group):
            return None
        if self._board.group_of(self._shard) != group:
            self._locks.give(group)
            return None
        return group

    def _look_drained(self) -> None:
        if self._offering.is_empty:
            self._drained.set()

    # ── requests ──

    def submit(self, request: WriteRequest) -> None:
        self._arrived_bytes += request.entry.length
        if not self._is_sharing and self._board.is_alone(self._shard):
            self._batcher.submit(request)
            return
        if not self._is_sharing:
            self._start_sharing()
        self._offer(request, self._clock.monotonic_s())
        self._schedule(0.0)

    def _offer(self, request: WriteRequest, arrival_s: float) -> None:
        # The one that has the turn hears of the first request, and again when there may be enough for an object.
        self._unsaid_bytes += request.entry.length
        if not self._offering.has_unpulled or self._unsaid_bytes >= self._said_bytes_max:
            self._news = True
            self._unsaid_bytes = 0
        # What fills an object by itself need not travel.
        self._offering.add(request, arrival_s, alone=request.entry.length > self._offer_bytes_max)

    def _upload_alone(self, draft: Draft) -> None:
        self._shared_in_flight += 1
        self._note_in_flight()
        self._next.submit(draft)

    def _start_sharing(self) -> None:
        self._is_sharing = True
        self._board.set_own(self._shard, 0, math.inf)
        for arrival_s, request in self._batcher.take_backlog():
            self._offer(request, arrival_s)

    def _stop_sharing(self) -> bool:
        """Take back what nobody has pulled: it is this shard's alone now. False where the lock is taken."""
        group = self._take_own_lock()
        if group is None:
            return False
        try:
            requests = self._offering.withdraw()
            self._is_sharing = False
            if group == self._shard:
                self._batcher.budget.tokens, self._batcher.budget.refilled_s = self._board.budget(group)
        finally:
            self._locks.give(group)
        for request in requests:
            self._batcher.submit(request)
        return True

    def uploaded(self, draft: Draft) -> None:
        """An upload of this shard has ended, well or badly."""
        if isinstance(draft, PulledDraft | LoneDraft):
            self._shared_in_flight -= 1
        else:
            self._batcher.uploaded(draft)
        self._note_in_flight()
        if self._is_sharing or not self._board.is_alone(self._shard):
            self._news = True
            self._schedule(0.0)

    @property
    def _in_flight(self) -> int:
        return self._shared_in_flight + self._batcher.drafts_in_flight

    # ── bells ──

    def _ring_later(self, shard: int) -> None:
        """Ring once for everything that happens in this turn of the event loop."""
        if shard == self._shard:
            asyncio.get_running_loop().call_soon(self._heard)
            return
        if not self._rung:
            asyncio.get_running_loop().call_soon(self._ring_all)
        self._rung[shard] = None

    def _ring_all(self) -> None:
        rung, self._rung = self._rung, {}
        for shard in rung:
            self._seat.ring(shard)

    def _heard(self) -> None:
        if not self._offering.is_empty:
            self._offering.collect()
            self._look_drained()
        self._pulling.look_again()
        self._ensure_tick()
        self._schedule(0.0)

    # ── turns ──

    def _schedule(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        at_s = loop.time() + delay_s
        if self._pump_handle is not None:
            if self._pump_at_s <= at_s:
                return
            self._pump_handle.cancel()
        self._pump_at_s = at_s
        self._pump_handle = loop.call_later(delay_s, self._pump) if delay_s > 0 else loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_handle = None
        self._note_arrivals()
        if self._offering.has_waiting:
            self._offering.publish()
        if self._board.is_alone(self._shard):
            if self._is_sharing and not self._stop_sharing():
                self._schedule(LOCKED_RETRY_S)
            return
        if not self._is_sharing and self._board.is_serving(self._shard):
            self._start_sharing()
            self._offering.publish()
        wait_s = self._take_turn()
        if wait_s is not None:
            self._schedule(max(wait_s, LOCKED_RETRY_S))

    def _take_turn(self) -> float | None:
        """Pull and upload what the group holds, if it is this shard's turn and time. Returns when to look again."""
        board = self._board
        groups = board.groups()
        group = groups[self._shard]
        shards = members(groups, group)
        serving = [shard for shard in shards if board.is_serving(shard)]
        if self._shard not in serving:
            return None
        now_s = self._clock.monotonic_s()
        holder = self.policy.holder(serving, board.turn(group), BoardLoads(board))
        # Each watches over its own oldest request: reading everybody's for every request would cost too much.
        oldest_s = self._offering.oldest_s
        interval_s = self._thresholds.interval_s
        if not may_take_turn(self._shard, holder, now_s=now_s, oldest_s=oldest_s, interval_s=interval_s, turn_s=TURN_S):
            if self._news:
                self._news = False
                self._ring_later(holder)
            return takeover_s(oldest_s, interval_s, TURN_S) - now_s if oldest_s < math.inf else None
        load = self._group_load(shards)
        if not load.backlog_bytes:
            return None
        self._news = False
        wait_s = self._closing_wait_s(group, len(shards), load, now_s)
        if wait_s is not None:
            self._ask_to_split(group, load)
            return wait_s if wait_s < math.inf else None
        if not self._locks.take(group):
            return LOCKED_RETRY_S
        try:
            if self._board.group_of(self._shard) != group:
                return LOCKED_RETRY_S
            draft = self._pull(group, shards, load, now_s)
        finally:
            self._locks.give(group)
        if draft is None:  # all of it waits for room in some ring, or in a shard that does not share yet
            return TICK_S
        self._shared_in_flight += 1
        self._note_in_flight()
        self._next.submit(draft)
        self._news = True  # whoever is next should look whether there is more
        return LOCKED_RETRY_S if self._group_load(shards).backlog_bytes else None

    def _closing_wait_s(self, group: int, member_count: int, load: GroupLoad, now_s: float) -> float | None:
        """None if it is time to pull; otherwise how long to wait. It spends nothing, and so needs no lock."""
        decision = self._decide(self._budgets.of(group, member_count), load, now_s)
        if isinstance(decision, Close):
            return None
        return decision.seconds if decision.seconds is not None else math.inf

    def _decide(self, budget: PutBudget, load: GroupLoad, now_s: float) -> Close | Wait:
        return decide_close(
            self._thresholds,
            budget,
            now_s=now_s,
            backlog_bytes=load.backlog_bytes,
            oldest_s=load.oldest_s,
            in_flight=load.in_flight,
        )

    def _ask_to_split(self, group: int, load: GroupLoad) -> None:
        """All upload slots are taken: the first shard may want to split."""
        if load.in_flight >= self._thresholds.in_flight_max:
            if group == self._shard:
                self._ensure_tick()
            else:
                self._ring_later(group)

    def _pull(self, group: int, shards: range, load: GroupLoad, now_s: float) -> PulledDraft | None:
        budget = self._budgets.of(group, len(shards))
        decision = self._decide(budget, load, now_s)
        draft = self._pulling.pull(shards, decision.bytes_target) if isinstance(decision, Close) else None
        if draft is not None:
            self._budgets.put(group, budget)
            self._board.advance_turn(group)
            self._pulls += 1
            self._pulled_bytes += draft.size_bytes
        return draft

    def _note_arrivals(self) -> None:
        if self._arrived_bytes:
            now_s = self._clock.monotonic_s()
            load = self._board.load(self._shard)
            rate = bytes_per_s_after(load, self._arrived_bytes, now_s, self._regroup_thresholds.memory_s)
            self._board.set_bytes_per_s(self._shard, rate, now_s)
            self._arrived_bytes = 0

    def _note_in_flight(self) -> None:
        now_s = self._clock.monotonic_s()
        before = self._board.load(self._shard)
        slots_used = slots_used_at(before, now_s, self._regroup_thresholds.memory_s)
        self._board.set_uploads_in_flight(self._shard, self._in_flight, slots_used, now_s)

    def _group_load(self, shards: range) -> GroupLoad:
        return group_load(
            BoardLoads(self._board),
            shards,
            now_s=self._clock.monotonic_s(),
            memory_s=self._regroup_thresholds.memory_s,
        )

    # ── groups ──

    def _ensure_tick(self) -> None:
        if self._tick_handle is None and self._has_decisions():
            delay_s = TICK_S * self._entropy.uniform(0.9, 1.1)
            self._tick_handle = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _has_decisions(self) -> bool:
        """Whether there may be anything to split or merge: not in one quiet group."""
        groups = self._board.groups()
        if groups[self._shard] != self._shard:
            return False
        if len(group_ids(groups)) > 1:
            return True
        load = self._group_load(members(groups, self._shard))
        full_bytes_per_s = self._regroup_thresholds.full_bytes_per_s(load.member_count)
        return load.backlog_bytes > self._thresholds.size_bytes or load.bytes_per_s >= full_bytes_per_s

    def _tick(self) -> None:
        self._tick_handle = None
        self._show_own()
        for shard in self._regrouping.step(self.policy):
            self._ring_later(shard)
        self._ensure_tick()

    def _show_own(self) -> None:
        """What the shard's own batcher holds, for the lower buddy to see."""
        own = self._batcher.statistics()
        self._board.set_own(self._shard, own.backlog_bytes, self._batcher.oldest_s)
        self._note_in_flight()
        self._note_arrivals()
        if self._board.is_alone(self._shard):
            budget = self._batcher.budget
            self._board.set_budget(self._shard, max(0.0, budget.tokens), budget.refilled_s)

    # ── figures ──

    def batcher_statistics(self) -> BatcherStatistics:
        own = self._batcher.statistics()
        return BatcherStatistics(
            self._board.load(self._shard).backlog_bytes if self._is_sharing else own.backlog_bytes,
            own.backlog_requests + self._offering.open_count,
            self._in_flight,
        )

    @property
    def statistics(self) -> SharingStatistics:
        return SharingStatistics(
            groups=len(group_ids(self._board.groups())),
            splits=self._regrouping.splits,
            merges=self._regrouping.merges,
            pulls=self._pulls,
            pulled_bytes=self._pulled_bytes,
            locks=self._locks.taken,
            locks_missed=self._locks.missed,
        )
