"""A shard's share of the common work, with nothing behind it: drafts are written down and answered at once."""

import math
from collections.abc import Coroutine
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
from braidlog.writing.order import Order
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.shards.dead_writers import DeadWriters
from braidlog.writing.shards.link import ShardLink
from braidlog.writing.shards.puller import OrderLost, PulledDraft
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


class ShardRig:
    """One shard. `uploaded` has the batches of each of its drafts, by what is in them."""

    def __init__(self, link: ShardLink, clock: Clock) -> None:
        self.link = link
        self.shard = link.shard
        self.policy = Willing()
        self.uploaded: list[bytes] = []
        self.drafts: list[Draft] = []
        self.submitted: list[bytes] = []
        self.answered: dict[bytes, int] = {}
        """The error code of each batch."""
        # Whatever waits is due at once, and no upload waits for another.
        thresholds = CloseThresholds(
            size_bytes=1 << 20, interval_s=1e-6, in_flight_max=1 << 30, early_in_flight_max=1 << 30
        )
        order = Order(self)
        batcher = Batcher(order, BatchRules(thresholds, wait_s_max=1e6), PutBudget(math.inf, 1.0), clock)
        self.scheduler = ShardScheduler(
            link,
            ShardStages(batcher, order, self),
            self.policy,
            PutBudget(math.inf, 1.0),
            clock,
            SeededEntropy(link.shard),
            DeadWriters(self._fence, _AtOnce("test")),
            incarnation=f"{link.shard:016x}",
        )

    def write(self) -> None:
        """Submit one more batch, to the shard's own partition."""
        records = b"%d/%d" % (self.shard, len(self.submitted))
        self.submitted.append(records)
        entry = BatchEntry(len(records), 1, 0, 5)
        self.scheduler.submit(WriteRequest(TOPIC, self.shard, records, entry, 5, -1, self._done))

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
        return self.is_all_answered and not self.drafts and self.scheduler._outbox.is_empty

    # ── the stage behind the shard ──

    def submit(self, draft: Draft) -> None:
        self.drafts.append(draft)
        self.uploaded += [bytes(request.records) for requests in draft.partitions.values() for request in requests]

    def answer(self) -> None:
        """Answer every draft that may be sequenced."""
        drafts, self.drafts = self.drafts, []
        for draft in drafts:
            try:
                if not (draft.is_clear() if isinstance(draft, PulledDraft) else draft.predecessors_open == 0):
                    self.drafts.append(draft)
                    continue
            except OrderLost:
                draft.fail(ErrorCode.not_enough_replicas_after_append, "order lost")
            else:
                for requests in draft.partitions.values():
                    for request in requests:
                        request.base_offset = OFFSET
                        request.way_back(request)
                draft.settle()
            self.scheduler.uploaded(draft)

    async def _fence(self, incarnation: str) -> None:
        """Nothing of the dead is on its way to be sequenced: its drafts are gone with it."""


class _AtOnce(TaskGroup):
    """Runs what never waits."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> Any:
        try:
            work.send(None)
        except StopIteration:
            return None
        raise AssertionError("it waits")
