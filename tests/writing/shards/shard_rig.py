"""A shard's share of the common work, with nothing behind it: drafts are written down and answered at once."""

import math
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from kio.schema.errors import ErrorCode

from braidlog.objects.layout import BatchEntry
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.tasks import TaskGroup
from braidlog.scheduling.budget import PutBudget
from braidlog.scheduling.closing import CloseThresholds
from braidlog.scheduling.policy import Adaptive
from braidlog.scheduling.regrouping import Merge, RegroupThresholds, Split, Standing
from braidlog.scheduling.shard_groups import buddy, halves, members
from braidlog.writing.batcher import Batcher, BatchRules
from braidlog.writing.journal.lazy_sequencing import JournalFile, OwnFile
from braidlog.writing.journal.unsequenced import Partition, Unsequenced
from braidlog.writing.order import Order
from braidlog.writing.order_node import OrderLost
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.shards.budgets import OwnBudget
from braidlog.writing.shards.dead_writers import DeadWriters, ReplayedWriters
from braidlog.writing.shards.journaled_batches import JournaledBatches
from braidlog.writing.shards.link import ShardLink
from braidlog.writing.shards.outbox import Fates
from braidlog.writing.shards.puller import PulledDraft
from braidlog.writing.shards.scheduler import ShardScheduler, ShardStages

TOPIC = b"t" * 16
OFFSET = 41


class Willing(Adaptive):
    """Splits or merges whenever that is possible, as it is told."""

    wants: Literal["split", "merge", "neither"] = "neither"

    def regroup(self, thresholds: RegroupThresholds, standing: Standing, shard: int) -> Split | Merge | None:
        groups = standing.groups
        if groups[shard] != shard:
            return None
        parts, other = halves(groups, shard), buddy(groups, shard)
        if self.wants == "split" and parts is not None:
            return Split(shard, parts[1])
        if self.wants == "merge" and other is not None and other > shard:
            return Merge(shard, members(groups, other))
        return None


class Clients:
    """The end of the way back."""

    def answered(self, request: WriteRequest) -> None:
        request.on_done(request)


class ShardRig:
    """One shard. `uploaded` has the batches of each of its drafts, by what is in them.

    If it is `journaled`, drafts are answered when they are stored, and sequenced by `sequence`.
    """

    def __init__(self, link: ShardLink, clock: Clock, *, journaled: bool = False) -> None:
        self.link = link
        self.shard = link.shard
        self.policy = Willing()
        self.uploaded: list[bytes] = []
        self.drafts: list[Draft] = []
        self.submitted: list[bytes] = []
        self.answered: dict[bytes, int] = {}
        """The error code of each batch."""
        self.journaled = journaled
        self.files: list[tuple[Draft, JournalFile, list[bytes]]] = []
        """Files that are stored and not sequenced, with their batches."""
        self.on_handed_over: Callable[[bytes], None] = lambda records: None
        """Called with each batch of a file that goes to the control plane."""
        self.left: list[Partition] = []
        """Partitions of files that were left to be replayed."""
        self.unsequenced = Unsequenced(Clients(), on_empty=lambda partition: None, on_left=self.left.extend)
        # Whatever waits is due at once, and no upload waits for another.
        thresholds = CloseThresholds(
            size_bytes=1 << 20, interval_s=1e-6, in_flight_max=1 << 30, early_in_flight_max=1 << 30
        )
        order = Order(self)
        budget = OwnBudget(PutBudget(math.inf, 1.0), link.board, link.other_board, link.shard)
        batcher = Batcher(order, BatchRules(thresholds, wait_s_max=1e6), budget, clock)
        self.scheduler = ShardScheduler(
            link,
            ShardStages(batcher, budget, order, self),
            self.policy,
            PutBudget(math.inf, 1.0),
            clock,
            SeededEntropy(link.shard),
            Fates(
                ReplayedWriters() if journaled else DeadWriters(self._fence, _AtOnce("test")),
                JournaledBatches(link.files, link.board, self.unsequenced, taken_over=False),
            ),
            incarnation=f"{link.shard:016x}",
        )

    def write(self) -> None:
        """Submit one more batch, to the shard's own partition."""
        records = b"%d/%d" % (self.shard, len(self.submitted))
        self.submitted.append(records)
        entry = BatchEntry(len(records), 1, 0, 5)
        request = WriteRequest(TOPIC, self.shard, records, entry, 5, -1, self._done)
        if self.journaled:
            self.unsequenced.add((TOPIC, self.shard))
            request.way_back = self.unsequenced.answered
        self.scheduler.submit(request)

    def _done(self, request: WriteRequest) -> None:
        records = bytes(request.records)
        assert records not in self.answered, f"{records!r} was answered twice"
        assert request.error_code or request.base_offset == OFFSET, f"{records!r} got offset {request.base_offset}"
        self.answered[records] = request.error_code

    @property
    def is_all_answered(self) -> bool:
        return len(self.answered) == len(self.submitted)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing of it is under way, nor of others in its hands."""
        is_sequenced = not self.files and not len(self.unsequenced)
        return self.is_all_answered and not self.drafts and is_sequenced and not self.scheduler._outbox.has_news_to_come

    # ── the stage behind the shard ──

    def submit(self, draft: Draft) -> None:
        self.drafts.append(draft)
        self.uploaded += [bytes(request.records) for requests in draft.partitions.values() for request in requests]

    def store(self) -> None:
        """Answer every draft, as it is in the journal."""
        drafts, self.drafts = self.drafts, []
        for draft in drafts:
            file = draft.open_file() if isinstance(draft, PulledDraft) else OwnFile(draft, self.unsequenced)
            batches = [request for requests in draft.partitions.values() for request in requests]
            self.files.append((draft, file, [bytes(request.records) for request in batches]))
            self._pass_back(draft)
            self.scheduler.uploaded(draft)

    def sequence(self) -> None:
        """Hand over every file that may be, and have it sequenced."""
        files, self.files = self.files, []
        for draft, file, batches in files:
            try:
                if not _is_clear(draft):
                    self.files.append((draft, file, batches))
                    continue
            except OrderLost:
                pass
            for records in batches:
                self.on_handed_over(records)
            draft.settle()
            file.handed_over()
            file.sequenced()

    def answer(self) -> None:
        """Answer every draft that may be sequenced."""
        if self.journaled:
            self.store()
            self.sequence()
            return
        drafts, self.drafts = self.drafts, []
        for draft in drafts:
            try:
                if not _is_clear(draft):
                    self.drafts.append(draft)
                    continue
            except OrderLost:
                draft.fail(ErrorCode.not_enough_replicas_after_append, "order lost")
            else:
                self._pass_back(draft)
                draft.settle()
            self.scheduler.uploaded(draft)

    def _pass_back(self, draft: Draft) -> None:
        for requests in draft.partitions.values():
            for request in requests:
                request.base_offset = OFFSET
                request.way_back(request)

    async def _fence(self, incarnation: str) -> None:
        """Nothing of the dead is on its way to be sequenced: its drafts are gone with it."""


def _is_clear(draft: Draft) -> bool:
    return draft.is_clear() if isinstance(draft, PulledDraft) else draft.predecessors_open == 0


class _AtOnce(TaskGroup):
    """Runs what never waits."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> Any:
        try:
            work.send(None)
        except StopIteration:
            return None
        raise AssertionError("it waits")
