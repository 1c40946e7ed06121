"""The schedule stage of an agent with several shards: who uploads, and when.

A shard that is alone in its shard group hands its requests to its own batcher: under full load shards share nothing,
and pay nothing for it. In a larger group, requests are published in shared memory. The members take turns as the
puller, which takes the requests of all of them into one object. Groups split and merge as `scheduling` decides, and the
order of requests stays the same: see `Order`.

In this room, *group* always means a shard group.
"""

import asyncio
import math
from dataclasses import dataclass

import structlog

from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.scheduling.budget import PutBudget
from braidlog.scheduling.closing import Close, Wait, decide_close
from braidlog.scheduling.loads import GroupLoad, bytes_per_s_after, group_load, slots_used_at
from braidlog.scheduling.policy import Policy
from braidlog.scheduling.pullers import may_pull, takeover_s
from braidlog.scheduling.regrouping import RegroupThresholds
from braidlog.scheduling.shard_groups import group_ids
from braidlog.writing.batcher import CONGESTED_RETRY_S, TOO_SLOW, Batcher, BatcherStatistics
from braidlog.writing.order import Order
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.shards.budgets import GroupBudgets, OwnBudget
from braidlog.writing.shards.link import ShardLink
from braidlog.writing.shards.outbox import Fates, LoneDraft, Outbox
from braidlog.writing.shards.puller import PulledDraft, Puller
from braidlog.writing.shards.shard_groups import BoardLoads, GroupLocks, Regrouper
from braidlog.writing.shards.statistics import ShardStatistics
from braidlog.writing.stage import DraftStage

log = structlog.get_logger(__name__)

TICK_S = 0.02
"""How often a group's first shard looks whether to split or merge, as long as it might have to."""
PULL_GRACE_S = 0.05
"""How long the others wait beyond the interval for a puller that does not pull."""
LOCKED_RETRY_S = 0.001
HOUSEKEEPING_S = 0.5


@dataclass(frozen=True, slots=True)
class ShardStages:
    """The stages of one shard, with which it uploads without the others."""

    batcher: Batcher
    budget: OwnBudget
    """The batcher's budget: one shard's share."""
    order: Order
    uploader: DraftStage


class ShardScheduler:
    """One shard's part in the common uploads, around its own batcher and upload stage."""

    def __init__(
        self,
        link: ShardLink,
        stages: ShardStages,
        policy: Policy,
        budget: PutBudget,
        clock: Clock,
        entropy: Entropy,
        fates: Fates,
        *,
        incarnation: str,
    ) -> None:
        """`budget` is the whole agent's."""
        rules = stages.batcher.rules
        self._link = link
        self._shard = link.shard
        self._board = board = link.board
        self._batcher = stages.batcher
        self._own_budget = stages.budget
        self._next = stages.uploader
        self.policy = policy
        self._thresholds = thresholds = rules.thresholds
        self._regroup_thresholds = RegroupThresholds(
            thresholds.size_bytes,
            thresholds.interval_s,
            thresholds.in_flight_max,
            backlog_bytes_per_shard_max=board.shape.arena_bytes // 2,
        )
        self._locks = GroupLocks(link)
        self._budgets = GroupBudgets(board, link.other_board, budget)
        self._regrouper = Regrouper(board, self._shard, self._locks, self._budgets, self._regroup_thresholds, clock)
        self._clock = clock
        self._entropy = entropy
        self._is_congested = rules.is_congested
        self._wait_s_max = rules.wait_s_max
        self._shared_bytes_max = min(board.shape.arena_bytes // 4, thresholds.size_bytes)
        self._wake_bytes = thresholds.size_bytes // board.shard_count
        self._unannounced_bytes = 0
        self._arrived_bytes = 0
        """Bytes that arrived since the shard last updated its rate."""
        self._is_sharing = False
        self._shared_in_flight = 0
        self._shared_unanswered = 0
        self._news = False
        """Whether to wake the puller."""
        self._pump_handle: asyncio.Handle | None = None
        self._pump_at_s = math.inf
        self._tick_handle: asyncio.Handle | None = None
        self._keeper_handle: asyncio.Handle | None = None
        self._to_wake: dict[int, None] = {}
        self._drained = asyncio.Event()
        self._pulls = 0
        self._pulled_bytes = 0
        self._outbox = Outbox(
            link,
            stages.order,
            clock,
            fates,
            wake=self._wake_later,
            upload_alone=self._upload_alone,
            give_up_s=2 * rules.wait_s_max,
        )
        self._puller = Puller(
            board,
            self._shard,
            incarnation,
            link.files,
            wake=self._wake_later,
            finish_own=self._outbox.finish,
            on_answered=self._answered,
        )

    # ── life ──

    def start(self) -> None:
        self._link.listen(self._woken)
        self._board.set_serving(self._shard, True)
        self._keep_house()

    async def flush(self) -> None:
        """Upload this shard's unpulled batches, and wait for the pulled ones."""
        self._board.set_serving(self._shard, False)
        while self._is_sharing and not self._stop_sharing(unless_joined=False):
            await self._clock.sleep(LOCKED_RETRY_S)
        await self._batcher.flush()
        if not self._outbox.is_empty:
            self._drained.clear()
            try:
                async with asyncio.timeout(self._wait_s_max):
                    await self._drained.wait()
            except TimeoutError:
                log.warning("other shards did not answer for batches that they pulled", count=self._outbox.open_count)

    def close(self) -> None:
        for handle in (self._pump_handle, self._tick_handle, self._keeper_handle):
            if handle is not None:
                handle.cancel()

    def _keep_house(self) -> None:
        """Do rare things without a wake-up: overdue requests, dead shards, life signs."""
        self._board.set_seen_s(self._shard, self._clock.monotonic_s())
        if self._outbox.has_news_to_come:
            self._outbox.collect()
            self._refuse_overdue()
            self._look_drained()
        self._puller.look_again()
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
            refused = self._outbox.withdraw(limit_s)
        finally:
            self._locks.give(group)
        for request in refused:
            request.fail(*TOO_SLOW)

    def _take_own_lock(self) -> int | None:
        return self._locks.take_of(self._board, self._shard)

    def _look_drained(self) -> None:
        if self._outbox.is_empty:
            self._drained.set()

    # ── requests ──

    def submit(self, request: WriteRequest) -> None:
        self._arrived_bytes += request.entry.length
        if not self._is_sharing and self._board.is_alone(self._shard):
            self._batcher.submit(request)
            return
        if not self._is_sharing:
            self._start_sharing()
        self._put_in_outbox(request, self._clock.monotonic_s())
        self._schedule(0.0)

    def _put_in_outbox(self, request: WriteRequest, arrival_s: float) -> None:
        # The puller is woken for the first request, and again when there may be enough for an object.
        self._unannounced_bytes += request.entry.length
        if not self._outbox.has_unpulled or self._unannounced_bytes >= self._wake_bytes:
            self._news = True
            self._unannounced_bytes = 0
        # A request that fills an object by itself is not shared.
        self._outbox.add(request, arrival_s, alone=request.entry.length > self._shared_bytes_max)

    def _upload_alone(self, draft: Draft) -> None:
        self._shared_in_flight += 1
        self._note_in_flight()
        self._next.submit(draft)

    def _start_sharing(self) -> None:
        self._is_sharing = True
        self._board.set_own(self._shard, 0, math.inf)
        for arrival_s, request in self._batcher.take_backlog():
            self._put_in_outbox(request, arrival_s)

    def _stop_sharing(self, *, unless_joined: bool) -> bool:
        """Take back unpulled batches, to upload them alone.

        Return False if the lock is taken, or if the shard has company again.
        """
        group = self._take_own_lock()
        if group is None:
            return False
        try:
            is_alone = self._board.is_alone(self._shard)
            if unless_joined and not is_alone:
                return False
            requests = self._outbox.withdraw()
            self._is_sharing = False
            if is_alone:
                self._own_budget.tokens, self._own_budget.refilled_s = self._board.budget(group)
                self._own_budget.paid_puts = self._board.paid_puts(self._shard)
        finally:
            self._locks.give(group)
        for request in requests:
            self._batcher.submit(request)
        return True

    def uploaded(self, draft: Draft) -> None:
        """Note that an upload of this shard has ended, well or badly."""
        if isinstance(draft, PulledDraft | LoneDraft):
            self._shared_in_flight -= 1
        else:
            self._batcher.uploaded(draft)
        self._note_in_flight()
        if self._is_sharing or not self._board.is_alone(self._shard):
            self._news = True
            self._schedule(0.0)

    def _answered(self) -> None:
        """Note that a pulled draft is answered: sequenced, or failed."""
        self._shared_unanswered -= 1
        self._schedule(0.0)

    @property
    def _in_flight(self) -> int:
        return self._shared_in_flight + self._batcher.drafts_in_flight

    # ── waking each other ──

    def _wake_later(self, shard: int) -> None:
        """Wake a shard once for everything in this iteration of the event loop."""
        if shard == self._shard:
            asyncio.get_running_loop().call_soon(self._woken)
            return
        if not self._to_wake:
            asyncio.get_running_loop().call_soon(self._wake_all)
        self._to_wake[shard] = None

    def _wake_all(self) -> None:
        woken, self._to_wake = self._to_wake, {}
        for shard in woken:
            self._link.wake(shard)

    def _woken(self) -> None:
        if self._outbox.has_news_to_come:
            self._outbox.collect()
            self._look_drained()
        self._puller.look_again()
        self._ensure_tick()
        self._schedule(0.0)

    # ── pulling ──

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
        if self._outbox.has_waiting:
            self._outbox.publish()
        if self._board.is_alone(self._shard):
            if self._is_sharing and not self._stop_sharing(unless_joined=True):
                self._schedule(LOCKED_RETRY_S)
            return
        if not self._is_sharing and self._board.is_serving(self._shard):
            self._start_sharing()
            self._outbox.publish()
        wait_s = self._pull_if_due()
        if wait_s is not None:
            self._schedule(max(wait_s, LOCKED_RETRY_S))

    def _pull_if_due(self) -> float | None:
        """Pull and upload if this shard's turn has come. Return when to look again."""
        board = self._board
        shards = board.members_of(self._shard)
        group = shards.start
        serving = [shard for shard in shards if board.is_serving(shard)]
        if self._shard not in serving:
            return None
        now_s = self._clock.monotonic_s()
        puller = self.policy.puller(serving, board.pull_count(group), BoardLoads(board))
        # Each shard watches its own oldest request: reading all of them for every request would cost too much.
        oldest_s = self._outbox.oldest_s
        interval_s = self._thresholds.interval_s
        if not may_pull(
            self._shard, puller, now_s=now_s, oldest_s=oldest_s, interval_s=interval_s, grace_s=PULL_GRACE_S
        ):
            if self._news:
                self._news = False
                self._wake_later(puller)
            return takeover_s(oldest_s, interval_s, PULL_GRACE_S) - now_s if oldest_s < math.inf else None
        if self._is_congested():
            return CONGESTED_RETRY_S
        load = self._group_load(shards)
        if not load.backlog_bytes:
            return None
        self._news = False
        wait_s = self._closing_wait_s(group, len(shards), load, now_s)
        if wait_s is not None:
            self._ask_to_split(group, load)
            return wait_s if wait_s < math.inf else None
        locked = self._take_own_lock()
        if locked is None:
            return LOCKED_RETRY_S
        try:
            # All that was read so far only said that the lock is worth taking.
            draft = self._pull(board.members_of(self._shard))
        finally:
            self._locks.give(locked)
        if draft is None:  # every batch waits for room in a ring, or in a shard that does not share yet
            return TICK_S
        self._shared_in_flight += 1
        self._shared_unanswered += 1
        self._note_in_flight()
        self._next.submit(draft)
        self._news = True  # the next puller should look whether there is more
        return LOCKED_RETRY_S if self._group_load(shards).backlog_bytes else None

    def _closing_wait_s(self, group: int, member_count: int, load: GroupLoad, now_s: float) -> float | None:
        """Return how long to wait, or None to pull now. It needs no lock."""
        decision = self._decide(self._budgets.of(range(group, group + member_count), now_s), load, now_s)
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
            unanswered=max(load.in_flight, self._shared_unanswered),
        )

    def _ask_to_split(self, group: int, load: GroupLoad) -> None:
        """Let the group's first shard consider a split, if all slots are taken."""
        if load.in_flight >= self._thresholds.in_flight_max:
            if group == self._shard:
                self._ensure_tick()
            else:
                self._wake_later(group)

    def _pull(self, shards: range) -> PulledDraft | None:
        """Pull, unless somebody else just did. Called under the group's lock."""
        group = shards.start
        budget = self._budgets.take(shards, self._clock.monotonic_s())
        decision = self._decide(budget, self._group_load(shards), self._clock.monotonic_s())
        draft = self._puller.pull(shards, decision.bytes_target) if isinstance(decision, Close) else None
        if draft is not None:
            self._budgets.put(group, budget)
            self._board.count_pull(group)
            self._board.count_put(self._shard)
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
        """Whether this shard may have to regroup: never in one quiet group of all."""
        shards = self._board.members_of(self._shard)
        if shards.start != self._shard:
            return False
        if len(shards) < self._board.shard_count:
            return True
        load = self._group_load(shards)
        full_bytes_per_s = self._regroup_thresholds.full_bytes_per_s(load.member_count)
        return load.backlog_bytes > self._thresholds.size_bytes or load.bytes_per_s >= full_bytes_per_s

    def _tick(self) -> None:
        self._tick_handle = None
        self._show_own()
        for shard in self._regrouper.step(self.policy):
            self._wake_later(shard)
        self._ensure_tick()

    def _show_own(self) -> None:
        """Show the load of the shard's own batcher to the lower buddy."""
        own = self._batcher.batcher_statistics()
        self._board.set_own(self._shard, own.backlog_bytes, self._batcher.oldest_s)
        self._note_in_flight()
        self._note_arrivals()
        if self._board.is_alone(self._shard):
            self._show_own_budget()

    def _show_own_budget(self) -> None:
        group = self._take_own_lock()
        if group is None:
            return
        try:
            if self._board.is_alone(self._shard):
                budget = self._own_budget
                self._board.set_budget(group, max(0.0, budget.tokens), budget.refilled_s)
                self._board.set_paid_puts(self._shard, budget.paid_puts)
        finally:
            self._locks.give(group)

    # ── figures ──

    def batcher_statistics(self) -> BatcherStatistics:
        own = self._batcher.batcher_statistics()
        return BatcherStatistics(
            self._board.load(self._shard).backlog_bytes if self._is_sharing else own.backlog_bytes,
            own.backlog_requests + self._outbox.open_count,
            self._in_flight,
        )

    @property
    def statistics(self) -> ShardStatistics:
        return ShardStatistics(
            shard=self._shard,
            group=self._board.group_of(self._shard),
            groups=len(group_ids(self._board.groups())),
            splits=self._regrouper.splits,
            merges=self._regrouper.merges,
            pulls=self._pulls,
            pulled_bytes=self._pulled_bytes,
            locks=self._locks.taken,
            locks_missed=self._locks.missed,
        )
