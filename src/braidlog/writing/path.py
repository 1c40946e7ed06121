"""Puts the write path together.

This is the one place that shows the whole of it, forward and back.

A request forward, and its result back:

    the client                                    the client (`on_done`)
        │                                             ▲
    WritePath                                     FollowOnFailures    idempotent
        │                                             ▲
        │                                         AckOrder            idempotent; classic ones only with Ripcord "auto"
        │                                             ▲
    Routing                                           ├───────────────── Unsequenced    journaled
        ├─ journaled ─▶ JournalPath                   │                      ▲
        ▼                   ▼                         │                      │
    ShardScheduler *    ShardScheduler *              │                      │
        ▼                   ▼                         │                      │
    Batcher             Batcher                       │                      │
        ▼                   ▼    drafts from here on  │                      │
    Order               Order                         │                      │
        ▼                   ▼                         │                      │
    Uploader            JournalUploader    pack       │                      │
        ▼                   ▼              and PUT    │                      │
    Billing             Billing                       │                      │
        ▼                   ▼                         │                      │
        │               LazySequencing ── stored ─────│──────────────────────┘
    Sequencing ── sequenced ──────────────────────────┘

    * In an agent with several shards. Another shard may pull the request from this shard's `Outbox` and upload it. Its
      `Puller` then writes the result into the shared memory, and the outbox sends the request on its way back. The two
      paths have boards and groups of their own. If the result is that the request is in a journal file of the puller,
      `JournaledBatches` follows that file (`FileStates`) until it is sequenced.

**The way back of a request** begins at `request.way_back`, its first result stage. Only `WritePath.submit` and
`JournalPath.submit` set it. Each result stage knows the next one back, and the last calls `request.on_done`. A classic
request without a producer id has no result stages: it goes straight to its client. Any forward stage may end a request
early with an error (`WriteRequest.fail`, `Draft.fail`): the way back is the same.

**The way back of a draft.** When its upload ends, well or badly, `Uploads.on_ended` tells the batcher (or the shard
scheduler) that an upload slot is free. When all its requests have their results, `Draft.on_answered` tells the one that
closed it. When its own fate is known, `Draft.settle` lets the drafts behind it be sequenced (`writing.order_node`).
"""

import math
from dataclasses import dataclass
from typing import Protocol

from braidlog.control.interface import ControlPlane
from braidlog.cost.prices import puts_per_s_for_budget
from braidlog.cost.topics import TopicMeter
from braidlog.objects.store import Store
from braidlog.records.batch import TRANSACTIONAL_BIT
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.limits import EARLY_UPLOADS_IN_FLIGHT_MAX
from braidlog.runtime.settings import AgentSettings
from braidlog.runtime.tasks import TaskGroup
from braidlog.scheduling.budget import PutBudget, budget_share
from braidlog.scheduling.closing import CloseThresholds
from braidlog.scheduling.policy import policy_named
from braidlog.writing.ack_order import AckOrder
from braidlog.writing.arena import Arena
from braidlog.writing.batcher import Batcher, BatcherStatistics, BatchRules, BatchStage
from braidlog.writing.billing import Billing
from braidlog.writing.follow_on_failures import FollowOnFailures
from braidlog.writing.journal.lazy_sequencing import JournalFile, LazySequencing, OwnFile, TakenOverFile
from braidlog.writing.journal.path import JournalPath
from braidlog.writing.journal.sequence_ends import SequenceEnds
from braidlog.writing.journal.unsequenced import Partition, Unsequenced
from braidlog.writing.journal.uploader import JournalUploader
from braidlog.writing.order import Order
from braidlog.writing.packing import Packer, Writer
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.routing import Routing
from braidlog.writing.sequencing import Sequencing
from braidlog.writing.shards.budgets import OwnBudget
from braidlog.writing.shards.dead_writers import DeadWriters, Fence, ReplayedWriters
from braidlog.writing.shards.journaled_batches import JournaledBatches
from braidlog.writing.shards.link import ShardLink, ShardLinks
from braidlog.writing.shards.outbox import Fates
from braidlog.writing.shards.puller import PulledDraft
from braidlog.writing.shards.scheduler import ShardScheduler, ShardStages
from braidlog.writing.stage import DraftStage, RequestStage
from braidlog.writing.uploader import Uploader
from braidlog.writing.uploads import StoredListener, Uploads

EARLY_BURST_S = 2.0
"""The budget saves up this many seconds of early uploads, for writes that come in small bursts."""
SEQUENCING_SHARE = 1 / 3
"""The part of a produce request's time that is for sequencing: the rest is for its upload."""


class Topics(Protocol):
    """The topics that the write path asks about."""

    def is_journaled(self, topic_id: bytes) -> bool:
        """Whether the topic's writes are acknowledged when they are stored.

        They are sequenced after that.
        """
        ...

    def topic_name(self, topic_id: bytes) -> str: ...


class Outage(Protocol):
    """Says what an outage of the control plane means for writes."""

    @property
    def journals_all(self) -> bool:
        """Whether all topics are journaled now, and not only those that always are."""
        ...

    def await_replay(self) -> None:
        """Keep journaling all topics until journals are replayed.

        Some of their records were left to that.
        """
        ...


@dataclass(frozen=True, slots=True)
class Components:
    """The components that the write path gets from outside."""

    control: ControlPlane
    store: Store
    clock: Clock
    entropy: Entropy


def close_thresholds(settings: AgentSettings, puts_per_s: float) -> CloseThresholds:
    costs_money = math.isfinite(puts_per_s)
    return CloseThresholds(
        size_bytes=settings.upload_size_bytes,
        interval_s=settings.upload_interval_ms / 1000,
        in_flight_max=settings.uploads_in_flight_max,
        # Where PUTs cost money the budget bounds early ones; where they do not, one at a time is enough.
        early_in_flight_max=EARLY_UPLOADS_IN_FLIGHT_MAX if costs_money else 1,
        size_bytes_behind=None if costs_money else 2 * settings.upload_size_bytes,
    )


class WritePath:
    """All stages of one agent, or of one of its shards.

    Also the first of them: requests are submitted here.
    """

    def __init__(
        self,
        components: Components,
        settings: AgentSettings,
        writer: Writer,
        topics: Topics,
        outage: Outage,
        bills: TopicMeter,
        on_stored: StoredListener,
        links: ShardLinks | None,
    ) -> None:
        """With `links`, this is one shard of several that share their uploads."""
        self._components = components
        self._settings = settings
        self._writer = writer
        self._topics = topics
        self._outage = outage
        self._bills = bills
        self._on_stored = on_stored
        self._uploads = TaskGroup("uploads")
        self._fences = TaskGroup("fences")
        self._arena = Arena(free_bytes_max=settings.memory_budget_bytes)
        self._request_timeout_s = settings.request_timeout_ms / 1000
        self._call_timeout_s = settings.commit_timeout_ms / 1000
        puts_per_s = puts_per_s_for_budget(settings.upload_budget_usd_month, bills.price)
        burst = max(1.0, puts_per_s * EARLY_BURST_S) if math.isfinite(puts_per_s) else 1.0
        self._budget = PutBudget(puts_per_s, burst)
        thresholds = close_thresholds(settings, puts_per_s)

        # The way back, from its end.
        self._follow_on_failures = FollowOnFailures(components.clock)
        self._ack_order = AckOrder(self._follow_on_failures, components.clock)
        self._unsequenced = Unsequenced(self._ack_order, on_empty=self._left_journal, on_left=self._left_to_replay)
        # A producer's batches are on both paths where an outage begins or ends, and answered in order all the same.
        self._orders_all_acks = settings.ripcord == "auto"

        # The way forward, from its end.
        self.shards: list[ShardScheduler] = []
        """The schedulers of the classic and of the journaled path, in an agent with several shards."""
        self._batcher = self._build_classic(thresholds, links)
        self.journal = self._build_journal(thresholds, links)
        self._routing = Routing(self._batcher, self.journal, self._is_journaled, self._unsequenced)
        self.first_stage: RequestStage = self._routing

    def _build_classic(self, thresholds: CloseThresholds, links: ShardLinks | None) -> BatchStage:
        store, clock, entropy = self._components.store, self._components.clock, self._components.entropy
        sequencing = Sequencing(
            self._components.control,
            clock,
            entropy.fork("sequencing"),
            deadline_s=self._request_timeout_s * SEQUENCING_SHARE,
            tasks=self._uploads,
            take_over=self._journal_instead,
        )
        billing = Billing(sequencing, self._bills, clock, topic_name=self._topics.topic_name)
        packer = Packer(self._writer, self._arena, clock, entropy.fork("uploader"))
        uploader = Uploader(store, packer, Uploads(billing, self._uploads, self._uploaded, self._on_stored))
        rules = BatchRules(thresholds, self._request_timeout_s, lambda: sequencing.is_congested)
        if links is None:
            return Batcher(Order(uploader), rules, self._budget, clock)
        fence = Fence(self._components.control, clock, entropy, call_timeout_s=self._call_timeout_s)
        journaled = JournaledBatches(links.classic.files, links.classic.board, self._unsequenced, taken_over=True)
        fates = Fates(DeadWriters(fence, self._fences), journaled)
        return self._share(links.classic, uploader, rules, fates, entropy.fork("sharing"))

    def _build_journal(self, thresholds: CloseThresholds, links: ShardLinks | None) -> JournalPath:
        control, clock, entropy = self._components.control, self._components.clock, self._components.entropy
        ends = SequenceEnds(control, self._writer.incarnation, call_timeout_s=self._call_timeout_s)
        sequencing = LazySequencing(
            control,
            clock,
            entropy.fork("lazy sequencing"),
            deadline_s=self._request_timeout_s,
            open_file=self._open_file,
        )
        billing = Billing(sequencing, self._bills, clock, topic_name=self._topics.topic_name)
        uploader = JournalUploader(
            self._components.store,
            Packer(self._writer, self._arena, clock, entropy.fork("journal")),
            Uploads(billing, self._uploads, self._journal_uploaded, self._on_stored),
            clock,
            sequence_age_s=self._settings.sequence_age_ms / 1000,
            on_sequence_ended=ends.ended,
        )
        rules = BatchRules(thresholds, self._request_timeout_s)
        batcher: BatchStage
        if links is None:
            batcher = Batcher(Order(uploader), rules, self._budget, clock)
        else:
            link = links.journal
            journaled = JournaledBatches(link.files, link.board, self._unsequenced, taken_over=False)
            fates = Fates(ReplayedWriters(), journaled)
            batcher = self._share(link, uploader, rules, fates, entropy.fork("sharing journals"))
        ack_order = None if self._orders_all_acks else self._ack_order
        return JournalPath(batcher, uploader, sequencing, self._unsequenced, ends, ack_order, self._open_taken_over)

    def _share(
        self, link: ShardLink, uploader: DraftStage, rules: BatchRules, fates: Fates, entropy: Entropy
    ) -> ShardScheduler:
        """Build the part of one path that shares its uploads with other shards."""
        clock = self._components.clock
        order = Order(uploader)
        share = budget_share(self._budget.puts_per_s, self._budget.burst, 1, link.board.shard_count)
        budget = OwnBudget(share, link.board, link.other_board, link.shard)
        shards = ShardScheduler(
            link,
            ShardStages(Batcher(order, rules, budget, clock), budget, order, uploader),
            policy_named(self._settings.upload_policy),
            self._budget,
            clock,
            entropy,
            fates,
            incarnation=self._writer.incarnation,
        )
        self.shards.append(shards)
        return shards

    def _open_file(self, draft: Draft) -> JournalFile:
        return draft.open_file() if isinstance(draft, PulledDraft) else OwnFile(draft, self._unsequenced)

    def _open_taken_over(self, draft: Draft) -> JournalFile:
        return draft.open_file() if isinstance(draft, PulledDraft) else TakenOverFile(draft, self._unsequenced)

    # ── forward ──

    def submit(self, request: WriteRequest) -> None:
        if request.entry.producer_id >= 0:
            if self._orders_all_acks:
                self._ack_order.expect(request)
                request.way_back = self._ack_order.answered
            else:
                request.way_back = self._follow_on_failures.answered
        self.first_stage.submit(request)

    def _is_journaled(self, request: WriteRequest) -> bool:
        """Whether to journal the request.

        Ripcord journals classic topics, too, but not transactions, which cannot do without the control plane.
        """
        if self._outage.journals_all and not request.entry.attributes & TRANSACTIONAL_BIT:
            return True
        return self._topics.is_journaled(request.topic_id)

    async def _journal_instead(self, draft: Draft) -> bool:
        """Journal a draft that was under way when the control plane went away.

        False: it fails.
        """
        if not self._outage.journals_all or any(
            request.entry.attributes & TRANSACTIONAL_BIT
            for requests in draft.partitions.values()
            for request in requests
        ):
            return False
        return await self.journal.take_over(draft)

    # ── back ──

    def _uploaded(self, draft: Draft) -> None:
        self._batcher.uploaded(draft)

    def _journal_uploaded(self, draft: Draft) -> None:
        self.journal.uploaded(draft)

    def _left_journal(self, partition: Partition) -> None:
        self._routing.release(partition)

    def _left_to_replay(self, partitions: list[Partition]) -> None:
        if not all(self._topics.is_journaled(topic_id) for topic_id, _ in partitions):
            self._outage.await_replay()

    # ── life ──

    def start(self) -> None:
        for shards in self.shards:
            shards.start()

    async def flush(self) -> None:
        """Upload what waits without waiting for more. Return when it is all answered."""
        await self._batcher.flush()
        await self.journal.flush()
        await self._uploads.wait_all()

    async def finish(self, timeout_s: float) -> None:
        """Give journal files so much time to be sequenced, and stop."""
        await self.journal.finish(timeout_s)
        for shards in self.shards:
            shards.close()
        await self._fences.cancel_all()

    # ── figures ──

    @property
    def waiting_count(self) -> int:
        """Requests that wait for their partition to leave the journal."""
        return self._routing.waiting_count

    def batcher_statistics(self) -> BatcherStatistics:
        return self._batcher.batcher_statistics()
