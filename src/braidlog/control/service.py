"""The control plane itself: all its parts behind the one interface, in this process."""

import asyncio
from collections.abc import Awaitable, Callable

from braidlog.control.agents import AgentRegistry
from braidlog.control.catalog import Catalog
from braidlog.control.catalog_topics import CatalogTopics
from braidlog.control.client_quotas import ClientQuotas
from braidlog.control.counters import NumberBlocks
from braidlog.control.epochs import WriteEpochs
from braidlog.control.extent_index import ExtentIndex
from braidlog.control.feed import Feed
from braidlog.control.groups import GroupCoordinator
from braidlog.control.held import HeldBatches
from braidlog.control.interface import (
    EXPIRE,
    AgentHeartbeat,
    AgentLeave,
    AlterClientQuotas,
    AlterConfigs,
    BoundsAnswer,
    BoundsRequest,
    CommitObject,
    CommitObjects,
    CommittedObjects,
    CompactionRequested,
    CompleteJob,
    CreatePartitions,
    CreateTopics,
    DeletedRecords,
    DeleteRecords,
    DeleteTopics,
    DescribeJournals,
    Done,
    EndSequence,
    FailJob,
    FeedPage,
    FeedRequest,
    FenceAgent,
    FindExtents,
    FindTimestamp,
    FoundExtents,
    HeartbeatAnswer,
    HeartbeatJob,
    InitProducerId,
    JobHeartbeat,
    JobListings,
    JobVerdict,
    JournalDescription,
    LeaseWriteEpoch,
    ListJobs,
    ObjectVerdict,
    Outcome,
    ProducerIdentity,
    QuotaOutcomes,
    RegisterAgent,
    Registered,
    RequestCompaction,
    RequestScan,
    ScanRequested,
    Snapshot,
    SnapshotRequest,
    TakeJob,
    TakenJob,
    TopicOutcomes,
    WriteLease,
)
from braidlog.control.job_planner import JobPlanner
from braidlog.control.jobs import JobBoard
from braidlog.control.journal_closing import JournalCloser
from braidlog.control.journal_pace import ReplayPace
from braidlog.control.journals import LIGHTNING, Journals
from braidlog.control.metadata import MetadataStore, Transaction
from braidlog.control.producers import Producers
from braidlog.control.recent import RecentExtents
from braidlog.control.retention import Retention
from braidlog.control.sequencer import Sequencer
from braidlog.control.sequences import Sequences
from braidlog.control.service_groups import GroupCalls
from braidlog.control.settings import ControlSettings
from braidlog.control.store_owner import CHECK_INTERVAL_S, StoreOwner
from braidlog.control.sweeper import Sweeper
from braidlog.control.transactions import Transactions
from braidlog.control.writers import Writers
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import ControlUnavailable

_OBJECT_NUMBER_BLOCK = 10_000


class ControlService(GroupCalls):
    """Implements `ControlPlane`. `start` takes over the metadata store: any earlier holder is fenced off."""

    def __init__(
        self, metadata: MetadataStore, store: Store, clock: Clock, entropy: Entropy, settings: ControlSettings
    ) -> None:
        super().__init__(clock, entropy)
        self._metadata = metadata
        self._store = store
        self.settings = settings
        self.cluster_id = ""
        self._turn = asyncio.Lock()
        """Whoever changes the state holds it from planning until the change is durable and visible."""

    async def start(self) -> None:
        metadata, turn, clock, settings = self._metadata, self._turn, self._clock, self.settings
        # The epoch is part of each random stream: a restart with the same seed must not repeat its identifiers.
        epoch = await metadata.acquire_fencing_epoch()
        self.cluster_id = await self._load_cluster_id()
        self.store_owner = StoreOwner(self._store, metadata, self.cluster_id)
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
        sequences, held = Sequences(), HeldBatches()
        self.sequencer = Sequencer(
            metadata=metadata,
            turn=turn,
            catalog=self.catalog,
            producers=self.producers,
            epochs=self.epochs,
            recent=self.recent,
            transactions=self.transactions,
            numbers=numbers,
            sequences=sequences,
            held=held,
            feed=self.feed,
            clock=clock,
            held_batches_max=settings.journals.held_batches_max,
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
        self.journals = Journals(
            metadata=metadata,
            turn=turn,
            catalog=self.catalog,
            agents=self.agents,
            board=self.jobs,
            sequencer=self.sequencer,
            sequences=sequences,
            held=held,
            clock=clock,
            settings=settings.journals,
            wait_s_max=settings.producer_expiration_s / 2,
        )
        self.sequencer.is_behind = self.journals.is_behind
        self.sequencer.asks_for_scan = self.journals.asks_for_scan
        self.producers.sequenced_until_ms = self.journals.sequenced_until_ms
        self.replay_pace = ReplayPace(clock, files_per_s=settings.journals.replay_files_per_s)
        self.journal_closer = JournalCloser(
            metadata=metadata,
            turn=turn,
            sequences=sequences,
            store=self._store,
            clock=clock,
            sequence_age_s=settings.journals.sequence_age_s,
            full_sweep_interval_s=settings.full_sweep_interval_s,
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
        self.sweeper.may_delete = self.journal_closer.may_delete
        await self.recent.recover()
        await self.catalog.load()
        await self.quotas.load()
        await self.epochs.load()
        await self.writers.load()
        await self.jobs.load()
        await self.agents.load()
        await self.journals.load()
        await self.groups.start()
        await self.transactions.load()
        if self.journals.may_exist:
            # What was journaled while no control plane was there should not wait for the next scan.
            await self.journals.plan_once()
        await self.store_owner.check_at_start()
        self._running = True
        self._start_loops(self._steps())

    async def close(self) -> None:
        """Finish what is in flight, then let go of the metadata store."""
        await self._stop()
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
        await self.store_owner.check()
        swept = await self.sweeper.run_once()
        await self.journal_closer.run_once()
        if swept.orphan_count or swept.unreferenced_count:
            detail = f"{swept.unreferenced_count} unreferenced objects and {swept.orphan_count} orphans deleted"
            await self.jobs.note_done(EXPIRE, "sweeper", 0, detail)

    def _partition_exists(self, topic_id: bytes, index: int) -> bool:
        return self.catalog.partition(topic_id, index) is not None

    def _topic_name(self, topic_id: bytes) -> str | None:
        topic = self.catalog.topics.get(topic_id)
        return topic.info.name if topic is not None else None

    # ── what runs on its own ──────────────────────────────────────────────────────────────────────────────────────

    def _steps(self) -> list[tuple[str, float, Callable[[], Awaitable[object]]]]:
        settings = self.settings
        return [
            ("write epochs", settings.epoch_interval_s, self.epochs.advance),
            ("agent sessions", settings.heartbeat_interval_s, self.agents.expire_once),
            ("retention", settings.retention_interval_s, self._expire),
            ("store owner", CHECK_INTERVAL_S, self.store_owner.check),
            ("sweeper", settings.sweep_interval_s, self._sweep),
            ("job planning", settings.jobs.plan_interval_s, self.planner.plan_once),
            ("job leases", settings.jobs.lease_s / 5, self.jobs.expire_once),
            ("producer expiry", settings.producer_expiration_s / 24, self.producers.expire_once),
            ("group expiry", settings.group_expiry_interval_s, self.groups.expire_once),
            ("overdue transactions", settings.transactions.timeout_check_interval_s, self.transactions.abort_overdue),
            ("transactional id expiry", settings.transactions.expiry_check_interval_s, self.transactions.expire_once),
            ("writer expiry", settings.writer_expiration_s / 24, self.writers.expire_once),
            ("journal scans", settings.journals.scan_interval_s, self.journals.plan_once),
            ("gaps of journals", settings.journals.gap_s / 4, self.journals.give_up_once),
        ]

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
        if request.journals:
            await self._within(timeout_s, self.journals.agent_journals(), change=True)
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
        replayed = self.journals.scans_replayed
        return HeartbeatAnswer(known, self.epochs.current, self._metadata.fencing_epoch, replayed)

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
        return await self._within(timeout_s, self._alter_configs(request), change=True)

    async def _alter_configs(self, request: AlterConfigs) -> Outcome:
        before = self.catalog.topics_of_type(LIGHTNING)
        outcome = await self.catalog.alter_configs(request)
        after = frozenset(topic.info.topic_id for topic in self.catalog.topics_of_type(LIGHTNING))
        if any(topic.info.topic_id not in after for topic in before):
            # Classic from now on, though some of their batches are still to be sequenced.
            self.journals.want_scan()
            await self.journals.plan_once()
        return outcome

    async def alter_client_quotas(self, request: AlterClientQuotas, *, timeout_s: float | None = None) -> QuotaOutcomes:
        return await self._within(timeout_s, self.quotas.alter(request), change=True)

    # ── sequencer and index ───────────────────────────────────────────────────────────────────────────────────────

    async def commit_object(self, request: CommitObject, *, timeout_s: float | None = None) -> ObjectVerdict:
        return await self._within(timeout_s, self._commit_object(request))

    async def _commit_object(self, request: CommitObject) -> ObjectVerdict:
        if not request.replayed:
            return await self.sequencer.commit(request)
        async with self.replay_pace.turn():
            return await self.sequencer.commit(request)

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

    # ── journals ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def request_scan(self, request: RequestScan, *, timeout_s: float | None = None) -> ScanRequested:
        return await self._within(timeout_s, self.journals.request_scan(request), change=True)

    async def end_sequence(self, request: EndSequence, *, timeout_s: float | None = None) -> Done:
        await self._within(timeout_s, self.journals.end_sequence(request), change=True)
        return Done()

    async def describe_journals(
        self, request: DescribeJournals, *, timeout_s: float | None = None
    ) -> JournalDescription:
        if not self._running:
            raise ControlUnavailable("the control plane is not running")
        return self.journals.describe(request)
