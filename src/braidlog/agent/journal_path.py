"""The write path of journaled topics, and its figures.

`acknowledge in order → batch → order → put into the journal → bill → acknowledge → sequence`
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from braidlog.agent.ack_order import AckOrder
from braidlog.agent.billing import Billing
from braidlog.agent.journal import Journal, JournalStatistics
from braidlog.agent.lazy_sequencing import LazySequencing, LazyStatistics
from braidlog.agent.replaying import JournalExecutor
from braidlog.agent.unsequenced import Entering, Unsequenced
from braidlog.control.interface import REPLAY, SCAN, EndSequence
from braidlog.control.worker import Worker
from braidlog.objects.store import StoreError
from braidlog.runtime.errors import BraidError
from braidlog.runtime.tasks import TaskGroup
from braidlog.scheduling.budget import PutBudget
from braidlog.scheduling.closing import CloseThresholds
from braidlog.writing.arena import Arena
from braidlog.writing.batcher import Batcher, BatcherStatistics
from braidlog.writing.order import Order
from braidlog.writing.request import Draft, WriteRequest

if TYPE_CHECKING:
    from braidlog.agent.agent import Agent

log = structlog.get_logger(__name__)

ENDS_UNTOLD_MAX = 10_000
REPLAYS_AT_ONCE = 2
"""So that a scan need not wait for a long replay."""


class JournalPath:
    """It has a batcher of its own, so that nothing here waits for an object of classic topics; budget and memory are
    shared with those. A shard journals what it takes itself: what would be gained by waiting for others is small
    against what these topics are for."""

    def __init__(
        self, agent: "Agent", thresholds: CloseThresholds, budget: PutBudget, arena: Arena, tasks: TaskGroup
    ) -> None:
        settings, clock = agent.settings, agent.clock
        self._control = agent.control
        self._incarnation = agent.incarnation
        self._calls = TaskGroup("ends of sequences")
        self._untold: dict[int, int] = {}
        """How many slots sequences have that were ended, by number, where the control plane does not know yet."""
        agent.reachability.on_back.append(self._tell_ends)
        self._call_timeout_s = settings.commit_timeout_ms / 1000
        request_timeout_s = settings.request_timeout_ms / 1000
        self.unsequenced = Unsequenced()
        self._lazy = LazySequencing(
            agent.control,
            clock,
            agent.entropy.fork("lazy sequencing"),
            deadline_s=request_timeout_s,
            unsequenced=self.unsequenced,
        )
        self._journal = Journal(
            Billing(self._lazy, agent.topic_bills, clock, topic_name=agent.topic_name),
            agent.store,
            clock,
            agent.entropy.fork("journal"),
            incarnation=agent.incarnation,
            zone=settings.zone,
            write_epoch=lambda: agent.session.write_epoch,
            sequence_age_s=settings.sequence_age_ms / 1000,
            on_uploaded=agent.cache.insert,
            on_finished=self._uploaded,
            on_ended=self._tell_end,
            tasks=tasks,
            arena=arena,
        )
        self._batcher = Batcher(Order(self._journal), thresholds, budget, clock, wait_s_max=request_timeout_s)
        self._first = AckOrder(Entering(self._batcher, self.unsequenced), clock)

        executor = JournalExecutor(
            agent.control, agent.store, clock, agent.entropy.fork("replaying"), incarnation=agent.incarnation
        )
        self.replays = Worker(
            agent.control,
            executor,
            clock,
            agent.entropy.fork("replay jobs"),
            name=f"agent {agent.incarnation}",
            kinds=[SCAN, REPLAY],
            jobs_at_once=REPLAYS_AT_ONCE,
        )
        """Looks for files that somebody has left behind, as the control plane asks for it."""

    def submit(self, request: WriteRequest) -> None:
        self._first.submit(request)

    async def take_over(self, draft: Draft) -> bool:
        """Journal a classic draft that could not be sequenced. False: the store did not take it."""
        try:
            await self._journal.take_in(draft)
        except StoreError as error:
            log.warning("a file could not be journaled instead", key=draft.key, error=str(error), help=error.help)
            return False
        for partition, requests in draft.groups.items():
            for _ in requests:
                self.unsequenced.add(partition)
        self._lazy.submit(draft)
        return True

    def _uploaded(self, draft: Draft) -> None:
        self._batcher.uploaded(draft)

    def _tell_end(self, number: int, slot_count: int) -> None:
        self._untold[number] = slot_count
        if len(self._untold) > ENDS_UNTOLD_MAX:
            del self._untold[min(self._untold)]
        self._tell_ends()

    def _tell_ends(self) -> None:
        self._calls.spawn(self._end_sequences())

    async def _end_sequences(self) -> None:
        """Saves the control plane a seal. If it does not hear of an end in time, it will seal the sequence."""
        # In their order: they are replayed in the order in which they became known.
        for number, slot_count in sorted(self._untold.items()):
            if self._untold.pop(number, None) is None:
                continue  # another task has seen to it meanwhile
            try:
                request = EndSequence(self._incarnation, number, slot_count)
                await self._control.end_sequence(request, timeout_s=self._call_timeout_s)
            except BraidError as error:
                self._untold[number] = slot_count
                log.info("the control plane was not told of a sequence's end", number=number, error=str(error))
                return

    async def flush(self) -> None:
        """Put into the journal what waits for it."""
        await self._batcher.flush()

    async def finish(self, timeout_s: float) -> None:
        """Give what is in the journal some time to be sequenced. What is not will be replayed."""
        self._journal.close()
        await self._lazy.finish(timeout_s)
        await self._calls.wait_all()

    def statistics(self) -> tuple[BatcherStatistics, JournalStatistics, LazyStatistics]:
        return self._batcher.statistics(), self._journal.statistics(), self._lazy.statistics()

    def figures(self) -> Iterator[Metric]:
        batcher, journal, lazy = self.statistics()
        for name, text, gauge in (
            ("backlog_bytes", "Records that wait to be put into the journal.", batcher.backlog_bytes),
            ("uploads_in_flight", "Files on their way into the journal.", batcher.drafts_in_flight),
            ("open_sequences", "Sequences that this agent puts files into.", journal.open_sequences),
            ("files_pending", "Files in the journal that this agent has not yet had sequenced.", lazy.pending),
        ):
            yield GaugeMetricFamily(f"braidlog_journal_{name}", text, value=gauge)
        for name, text, count in (
            ("files", "Files put into the journal.", journal.files),
            ("file_bytes", "Bytes in these.", journal.bytes),
            ("sequences", "Sequences opened.", journal.sequences),
            ("sealed_out", "Files that found their slot fenced and went to another sequence.", journal.sealed_out),
            ("files_failed", "Files that the store did not take.", journal.failed),
            ("files_sequenced", "Files that this agent had sequenced right after it put them there.", lazy.sequenced),
            ("files_left", "Files that it left to be replayed.", lazy.left),
        ):
            yield CounterMetricFamily(f"braidlog_journal_{name}", text, count)
        replays = self.replays.statistics()
        jobs = CounterMetricFamily(
            "braidlog_journal_jobs",
            "Scans and replays of journals that this agent did, by outcome.",
            labels=["outcome"],
        )
        for outcome, count in (("done", replays.done), ("refused", replays.refused), ("failed", replays.failed)):
            jobs.add_metric([outcome], count)
        yield jobs
