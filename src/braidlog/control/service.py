"""The control plane itself: all its parts behind the one interface, in this process."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog

from braidlog.control.agents import AgentRegistry
from braidlog.control.catalog import Catalog
from braidlog.control.catalog_topics import CatalogTopics
from braidlog.control.client_quotas import ClientQuotas
from braidlog.control.counters import NumberBlocks
from braidlog.control.epochs import WriteEpochs
from braidlog.control.extent_index import ExtentIndex
from braidlog.control.feed import Feed
from braidlog.control.groups import GroupCoordinator
from braidlog.control.interface import (
    EXPIRE,
    AddedPartitions,
    AddGroupToTransaction,
    AddPartitionsToTransaction,
    AgentHeartbeat,
    AgentLeave,
    AlterClientQuotas,
    AlterConfigs,
    BoundsAnswer,
    BoundsRequest,
    CommitObject,
    CommitObjects,
    CommitOffsets,
    CommitOffsetsAnswer,
    CommittedObjects,
    CommitTransactionOffsets,
    CompactionRequested,
    CompleteJob,
    ConsumerGroupDescriptions,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    CreatePartitions,
    CreateTopics,
    DeletedRecords,
    DeleteGroups,
    DeleteOffsets,
    DeleteOffsetsAnswer,
    DeleteRecords,
    DeleteTopics,
    DescribeConsumerGroups,
    DescribeGroups,
    DescribeProducers,
    DescribeTransactions,
    Done,
    EndTransaction,
    FailJob,
    FeedPage,
    FeedRequest,
    FenceAgent,
    FetchOffsets,
    FetchOffsetsAnswer,
    FindAborted,
    FindExtents,
    FindTimestamp,
    FoundAborted,
    FoundExtents,
    GroupDescriptions,
    GroupHeartbeat,
    GroupListings,
    GroupOutcomes,
    HeartbeatAnswer,
    HeartbeatJob,
    InitProducerId,
    JobHeartbeat,
    JobListings,
    JobVerdict,
    JoinAnswer,
    JoinGroup,
    LeaseWriteEpoch,
    LeaveAnswer,
    LeaveGroup,
    ListGroups,
    ListJobs,
    ListTransactions,
    ObjectVerdict,
    Outcome,
    ProducerDescriptions,
    ProducerIdentity,
    QuotaOutcomes,
    RegisterAgent,
    Registered,
    RequestCompaction,
    Snapshot,
    SnapshotRequest,
    SyncAnswer,
    SyncGroup,
    TakeJob,
    TakenJob,
    TopicOutcomes,
    TransactionDescriptions,
    TransactionListings,
    WriteLease,
)
from braidlog.control.job_planner import JobPlanner
from braidlog.control.jobs import JobBoard
from braidlog.control.metadata import MetadataStore, Transaction
from braidlog.control.producers import Producers
from braidlog.control.recent import RecentExtents
from braidlog.control.retention import Retention
from braidlog.control.sequencer import Sequencer
from braidlog.control.settings import ControlSettings
from braidlog.control.sweeper import Sweeper
from braidlog.control.transactions import Transactions
from braidlog.control.writers import Writers
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, ControlUnavailable, DeadlineExceeded, Fenced

T = TypeVar("T")

_log = structlog.get_logger(__name__)

CHANGES_IN_FLIGHT_MAX = 10_000
_OBJECT_NUMBER_BLOCK = 10_000


class ControlService:
    """Implements `ControlPlane`. `start` takes over the metadata store: any earlier holder is fenced off."""

    def __init__(
        self, metadata: MetadataStore, store: Store, clock: Clock, entropy: Entropy, settings: ControlSettings
    ) -> None:
        self._metadata = metadata
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self.settings = settings
        self.cluster_id = ""
        self._turn = asyncio.Lock()
        """Whoever changes the state holds it from planning until the change is durable and visible."""
        self._changes: set[asyncio.Task[Any]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._running = False
        self.fenced = asyncio.Event()
        """Set when another control plane has taken over: this one must be closed."""

    async def start(self) -> None:
        metadata, turn, clock, settings = self._metadata, self._turn, self._clock, self.settings
        # The epoch is part of each random stream: a restart with the same seed must not repeat its identifiers.
        epoch = await metadata.acquire_fencing_epoch()
        self.cluster_id = await self._load_cluster_id()
        self.feed = Feed(epoch, events_max=settings.feed_events_max, ring_bytes_max=settings.feed_bytes_max)
        self.catalog = Catalog(metadata, turn, self.feed, clock, self._entropy.fork(f"catalog/{epoch}"))
        self.quotas = ClientQuotas(metadata, turn, self.feed)
        self.epochs = WriteEpochs(metadata, turn)
        self.recent = RecentExtents(metadata, extents_max=settings.recent_extents_max)
        self.producers = Producers(
            metadata,
            turn,
            clock,
            self.recent.settle,
            expiration_ms=int(settings.producer_expiration_s * 1000),
            states_max=settings.producer_states_max,
        )
        self.index = ExtentIndex(
            metadata=metadata, turn=turn, catalog=self.catalog, recent=self.recent, feed=self.feed, clock=clock
        )
        self.groups = GroupCoordinator(
            metadata,
            clock,
            self._entropy.fork(f"groups/{epoch}"),
            settings.groups,
            self._partition_exists,
            self._topic_name,
            CatalogTopics(self.catalog),
        )
        numbers = NumberBlocks(metadata, "object_number", _OBJECT_NUMBER_BLOCK)
        self.transactions = Transactions(
            metadata=metadata,
            turn=turn,
            catalog=self.catalog,
            producers=self.producers,
            recent=self.recent,
            numbers=numbers,
            groups=self.groups,
            feed=self.feed,
            clock=clock,
            settings=settings.transactions,
        )
        self.sequencer = Sequencer(
            metadata=metadata,
            turn=turn,
            catalog=self.catalog,
            producers=self.producers,
            epochs=self.epochs,
            recent=self.recent,
            transactions=self.transactions,
            numbers=numbers,
            feed=self.feed,
            clock=clock,
        )
        self.writers = Writers(
            metadata,
            turn,
            self.sequencer,
            self.epochs,
            clock,
            store_url=self._store.url,
            lease_ms=int(settings.write_lease_s * 1000),
            expiration_ms=int(settings.writer_expiration_s * 1000),
        )
        self.jobs = JobBoard(
            metadata=metadata,
            turn=turn,
            catalog=self.catalog,
            epochs=self.epochs,
            feed=self.feed,
            clock=clock,
            entropy=self._entropy.fork(f"jobs/{epoch}"),
            lease_s=settings.jobs.lease_s,
        )
        self.planner = JobPlanner(
            metadata=metadata,
            turn=turn,
            catalog=self.catalog,
            recent=self.recent,
            board=self.jobs,
            clock=clock,
            settings=settings.jobs,
        )
        self.epochs.lowest_held = self._lowest_epoch_held
        self.agents = AgentRegistry(
            metadata,
            turn,
            self.feed,
            clock,
            heartbeat_interval_s=settings.heartbeat_interval_s,
            session_timeout_s=settings.session_timeout_s,
        )
        self.retention = Retention(
            metadata=metadata,
            turn=turn,
            catalog=self.catalog,
            index=self.index,
            recent=self.recent,
            producers=self.producers,
            clock=clock,
        )
        self.sweeper = Sweeper(
            metadata=metadata,
            turn=turn,
            epochs=self.epochs,
            store=self._store,
            clock=clock,
            grace_epochs=settings.grace_epochs,
            unreferenced_grace_ms=int(settings.unreferenced_grace_s * 1000),
            full_sweep_interval_ms=int(settings.full_sweep_interval_s * 1000),
        )
        await self.recent.recover()
        await self.catalog.load()
        await self.quotas.load()
        await self.epochs.load()
        await self.writers.load()
        await self.jobs.load()
        await self.agents.load()
        await self.groups.start()
        await self.transactions.load()
        self._running = True
        self._start_loops()

    async def close(self) -> None:
        """Finish what is in flight, then let go of the metadata store."""
        self._running = False
        for loop in self._loops:
            loop.cancel()
        if self._loops:
            await asyncio.wait(self._loops)
            self._loops.clear()
        if self._changes:
            await asyncio.wait(self._changes)
        if self.cluster_id:
            self.feed.wake()
            await self.sequencer.close()
            await self.transactions.close()
            await self.groups.close()
        await self._metadata.close()

    async def _load_cluster_id(self) -> str:
        proposed = str(self._entropy.uuid())

        def load(tx: Transaction) -> str:
            rows = tx.query("SELECT value FROM facts WHERE name = 'cluster_id'")
            if rows:
                return str(rows[0][0])
            tx.execute("INSERT INTO facts (name, value) VALUES ('cluster_id', ?)", (proposed,))
            return proposed

        return await self._metadata.transact(load)

    def _lowest_epoch_held(self) -> int | None:
        held = [self.writers.lowest_epoch_held(), self.jobs.lowest_epoch_held()]
        return min((epoch for epoch in held if epoch is not None), default=None)

    async def _expire(self) -> None:
        """Retention, for whoever lists jobs: only what has removed something is noted."""
        dropped = await self.retention.run_once()
        if dropped:
            await self.jobs.note_done(EXPIRE, "retention", dropped, f"{dropped} extents dropped")

    async def _sweep(self) -> None:
        swept = await self.sweeper.run_once()
        if swept.orphan_count or swept.unreferenced_count:
            detail = f"{swept.unreferenced_count} unreferenced objects and {swept.orphan_count} orphans deleted"
            await self.jobs.note_done(EXPIRE, "sweeper", 0, detail)

    def _partition_exists(self, topic_id: bytes, index: int) -> bool:
        return self.catalog.partition(topic_id, index) is not None

    def _topic_name(self, topic_id: bytes) -> str | None:
        topic = self.catalog.topics.get(topic_id)
        return topic.info.name if topic is not None else None

    # ── what runs on its own ──────────────────────────────────────────────────────────────────────────────────────

    def _start_loops(self) -> None:
        settings = self.settings
        steps: list[tuple[str, float, Callable[[], Awaitable[object]]]] = [
            ("write epochs", settings.epoch_interval_s, self.epochs.advance),
            ("agent sessions", settings.heartbeat_interval_s, self.agents.expire_once),
            ("retention", settings.retention_interval_s, self._expire),
            ("sweeper", settings.sweep_interval_s, self._sweep),
            ("job planning", settings.jobs.plan_interval_s, self.planner.plan_once),
            ("job leases", settings.jobs.lease_s / 5, self.jobs.expire_once),
            ("producer expiry", settings.producer_expiration_s / 24, self.producers.expire_once),
            ("group expiry", settings.group_expiry_interval_s, self.groups.expire_once),
            ("overdue transactions", settings.transactions.timeout_check_interval_s, self.transactions.abort_overdue),
            ("transactional id expiry", settings.transactions.expiry_check_interval_s, self.transactions.expire_once),
            ("writer expiry", settings.writer_expiration_s / 24, self.writers.expire_once),
        ]
        self._loops = [
            asyncio.create_task(self._repeat(name, interval_s, step), name=name) for name, interval_s, step in steps
        ]

    async def _repeat(self, name: str, interval_s: float, step: Callable[[], Awaitable[object]]) -> None:
        entropy = self._entropy.fork(name)
        while True:
            # Jitter, so that the steps of many clusters, or of one, do not fall on the same moment.
            await self._clock.sleep(interval_s * entropy.uniform(0.9, 1.1))
            try:
                await self._change(step())
            except Fenced:
                return
            except BraidError as error:
                _log.warning(
                    "background step failed, will be tried again", step=name, error=str(error), help=error.help
                )

    # ── how calls run ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _change(self, work: Awaitable[T]) -> T:
        """Run to the end even where the caller gives up: a change half seen would leave memory and metadata apart."""
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._changes.add(task)
        task.add_done_callback(self._changed)
        return await asyncio.shield(task)

    def _changed(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled() and isinstance(task.exception(), Fenced):
            self.fenced.set()

    async def _within(self, timeout_s: float | None, work: Coroutine[Any, Any, T], *, change: bool = False) -> T:
        if not self._running or (change and len(self._changes) >= CHANGES_IN_FLIGHT_MAX):
            work.close()
            raise ControlUnavailable("the control plane is not running, or has too much to do")
        try:
            async with asyncio.timeout(timeout_s):
                return await (self._change(work) if change else work)
        except TimeoutError:
            raise DeadlineExceeded(f"no answer within {timeout_s} s") from None
        except Fenced:
            self.fenced.set()
            raise

    # ── the change feed ───────────────────────────────────────────────────────────────────────────────────────────

    async def snapshot(self, request: SnapshotRequest, *, timeout_s: float | None = None) -> Snapshot:
        return await self._within(timeout_s, self._snapshot())

    async def _snapshot(self) -> Snapshot:
        # Proves that nobody has taken over; what follows is one moment, because nothing is awaited.
        await self.index.current_bounds(BoundsRequest([]))
        return Snapshot(
            position=self.feed.position,
            cluster_id=self.cluster_id,
            topics=[topic.info for topic in self.catalog.topics.values()],
            bounds=[state.bounds for state in self.catalog.partitions.values()],
            agents=self.agents.agents,
            cluster_configs=dict(self.catalog.cluster_configs),
            client_quotas=self.quotas.quotas,
            store_url=self._store.url,
        )

    async def read_feed(self, request: FeedRequest, *, timeout_s: float | None = None) -> FeedPage:
        return await self._within(timeout_s, self.feed.read(request))

    # ── agents ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def register_agent(self, request: RegisterAgent, *, timeout_s: float | None = None) -> Registered:
        info = await self._within(timeout_s, self.agents.register(request), change=True)
        return Registered(
            node_id=info.node_id,
            cluster_id=self.cluster_id,
            write_epoch=self.epochs.current,
            fencing_epoch=self._metadata.fencing_epoch,
            heartbeat_interval_ms=int(self.agents.heartbeat_interval_s * 1000),
        )

    async def heartbeat_agent(self, request: AgentHeartbeat, *, timeout_s: float | None = None) -> HeartbeatAnswer:
        if not self._running:
            raise ControlUnavailable("the control plane is not running")
        known = self.agents.heartbeat(request)
        return HeartbeatAnswer(known, self.epochs.current, self._metadata.fencing_epoch)

    async def leave_agent(self, request: AgentLeave, *, timeout_s: float | None = None) -> Done:
        await self._within(timeout_s, self.agents.leave(request), change=True)
        return Done()

    async def fence_agent(self, request: FenceAgent, *, timeout_s: float | None = None) -> Done:
        await self._within(timeout_s, self.epochs.fence(request.incarnation), change=True)
        return Done()

    # ── catalog ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_topics(self, request: CreateTopics, *, timeout_s: float | None = None) -> TopicOutcomes:
        return await self._within(timeout_s, self.catalog.create_topics(request), change=True)

    async def delete_topics(self, request: DeleteTopics, *, timeout_s: float | None = None) -> TopicOutcomes:
        return await self._within(timeout_s, self._delete_topics(request), change=True)

    async def _delete_topics(self, request: DeleteTopics) -> TopicOutcomes:
        answer = await self.catalog.delete_topics(request)
        for outcome in answer.outcomes:
            if outcome.topic is not None:
                self.groups.topic_removed(outcome.topic.topic_id)
        return answer

    async def create_partitions(self, request: CreatePartitions, *, timeout_s: float | None = None) -> TopicOutcomes:
        return await self._within(timeout_s, self.catalog.create_partitions(request), change=True)

    async def alter_configs(self, request: AlterConfigs, *, timeout_s: float | None = None) -> Outcome:
        return await self._within(timeout_s, self.catalog.alter_configs(request), change=True)

    async def alter_client_quotas(self, request: AlterClientQuotas, *, timeout_s: float | None = None) -> QuotaOutcomes:
        return await self._within(timeout_s, self.quotas.alter(request), change=True)

    # ── sequencer and index ───────────────────────────────────────────────────────────────────────────────────────

    async def commit_object(self, request: CommitObject, *, timeout_s: float | None = None) -> ObjectVerdict:
        return await self._within(timeout_s, self.sequencer.commit(request))

    async def find_extents(self, request: FindExtents, *, timeout_s: float | None = None) -> FoundExtents:
        return await self._within(timeout_s, self.index.find_extents(request))

    async def find_timestamp(self, request: FindTimestamp, *, timeout_s: float | None = None) -> FoundExtents:
        return await self._within(timeout_s, self.index.find_timestamp(request))

    async def current_bounds(self, request: BoundsRequest, *, timeout_s: float | None = None) -> BoundsAnswer:
        return await self._within(timeout_s, self.index.current_bounds(request))

    async def delete_records(self, request: DeleteRecords, *, timeout_s: float | None = None) -> DeletedRecords:
        return await self._within(timeout_s, self.index.delete_records(request), change=True)

    async def init_producer_id(self, request: InitProducerId, *, timeout_s: float | None = None) -> ProducerIdentity:
        who = self.producers if request.transactional_id is None else self.transactions
        return await self._within(timeout_s, who.init(request), change=True)

    async def lease_write_epoch(self, request: LeaseWriteEpoch, *, timeout_s: float | None = None) -> WriteLease:
        return await self._within(timeout_s, self.writers.lease(request), change=True)

    async def commit_objects(self, request: CommitObjects, *, timeout_s: float | None = None) -> CommittedObjects:
        return await self._within(timeout_s, self.writers.commit(request), change=True)

    # ── transactions ──────────────────────────────────────────────────────────────────────────────────────────────

    async def add_partitions_to_transaction(
        self, request: AddPartitionsToTransaction, *, timeout_s: float | None = None
    ) -> AddedPartitions:
        return await self._within(timeout_s, self.transactions.add_partitions(request), change=True)

    async def add_group_to_transaction(
        self, request: AddGroupToTransaction, *, timeout_s: float | None = None
    ) -> Outcome:
        return await self._within(timeout_s, self.transactions.add_group(request), change=True)

    async def commit_transaction_offsets(
        self, request: CommitTransactionOffsets, *, timeout_s: float | None = None
    ) -> CommitOffsetsAnswer:
        return await self._within(timeout_s, self.transactions.commit_offsets(request), change=True)

    async def end_transaction(self, request: EndTransaction, *, timeout_s: float | None = None) -> ProducerIdentity:
        return await self._within(timeout_s, self.transactions.end(request), change=True)

    async def find_aborted(self, request: FindAborted, *, timeout_s: float | None = None) -> FoundAborted:
        return await self._within(timeout_s, self.transactions.queries.find_aborted(request))

    async def describe_transactions(
        self, request: DescribeTransactions, *, timeout_s: float | None = None
    ) -> TransactionDescriptions:
        return await self._within(timeout_s, self.transactions.queries.describe(request))

    async def list_transactions(
        self, request: ListTransactions, *, timeout_s: float | None = None
    ) -> TransactionListings:
        return await self._within(timeout_s, self.transactions.queries.list(request))

    async def describe_producers(
        self, request: DescribeProducers, *, timeout_s: float | None = None
    ) -> ProducerDescriptions:
        return await self._within(timeout_s, self.transactions.queries.describe_producers(request), change=True)

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def take_job(self, request: TakeJob, *, timeout_s: float | None = None) -> TakenJob:
        return await self._within(timeout_s, self.jobs.take(request))

    async def heartbeat_job(self, request: HeartbeatJob, *, timeout_s: float | None = None) -> JobHeartbeat:
        if not self._running:
            raise ControlUnavailable("the control plane is not running")
        return self.jobs.heartbeat(request)

    async def complete_job(self, request: CompleteJob, *, timeout_s: float | None = None) -> JobVerdict:
        return await self._within(timeout_s, self.jobs.complete(request), change=True)

    async def fail_job(self, request: FailJob, *, timeout_s: float | None = None) -> Done:
        await self._within(timeout_s, self.jobs.fail(request), change=True)
        return Done()

    async def list_jobs(self, request: ListJobs, *, timeout_s: float | None = None) -> JobListings:
        if not self._running:
            raise ControlUnavailable("the control plane is not running")
        return self.jobs.list(request)

    async def request_compaction(
        self, request: RequestCompaction, *, timeout_s: float | None = None
    ) -> CompactionRequested:
        return await self._within(timeout_s, self.planner.request_compaction(request), change=True)

    # ── consumer groups ───────────────────────────────────────────────────────────────────────────────────────────

    async def join_group(self, request: JoinGroup, *, timeout_s: float | None = None) -> JoinAnswer:
        return await self._within(timeout_s, self.groups.join_group(request))

    async def sync_group(self, request: SyncGroup, *, timeout_s: float | None = None) -> SyncAnswer:
        return await self._within(timeout_s, self.groups.sync_group(request))

    async def heartbeat_group(self, request: GroupHeartbeat, *, timeout_s: float | None = None) -> Outcome:
        return await self._within(timeout_s, self.groups.heartbeat_group(request))

    async def leave_group(self, request: LeaveGroup, *, timeout_s: float | None = None) -> LeaveAnswer:
        return await self._within(timeout_s, self.groups.leave_group(request), change=True)

    async def commit_offsets(self, request: CommitOffsets, *, timeout_s: float | None = None) -> CommitOffsetsAnswer:
        return await self._within(timeout_s, self.groups.commit_offsets(request), change=True)

    async def fetch_offsets(self, request: FetchOffsets, *, timeout_s: float | None = None) -> FetchOffsetsAnswer:
        answer = await self._within(timeout_s, self.groups.fetch_offsets(request))
        return self.transactions.mark_unstable(request, answer) if request.require_stable else answer

    async def delete_offsets(self, request: DeleteOffsets, *, timeout_s: float | None = None) -> DeleteOffsetsAnswer:
        return await self._within(timeout_s, self.groups.delete_offsets(request), change=True)

    async def list_groups(self, request: ListGroups, *, timeout_s: float | None = None) -> GroupListings:
        return await self._within(timeout_s, self.groups.list_groups(request))

    async def describe_groups(self, request: DescribeGroups, *, timeout_s: float | None = None) -> GroupDescriptions:
        return await self._within(timeout_s, self.groups.describe_groups(request))

    async def delete_groups(self, request: DeleteGroups, *, timeout_s: float | None = None) -> GroupOutcomes:
        return await self._within(timeout_s, self.groups.delete_groups(request), change=True)

    async def heartbeat_consumer(
        self, request: ConsumerHeartbeat, *, timeout_s: float | None = None
    ) -> ConsumerHeartbeatAnswer:
        return await self._within(timeout_s, self.groups.heartbeat_consumer(request))

    async def describe_consumer_groups(
        self, request: DescribeConsumerGroups, *, timeout_s: float | None = None
    ) -> ConsumerGroupDescriptions:
        return await self._within(timeout_s, self.groups.describe_consumer_groups(request))
