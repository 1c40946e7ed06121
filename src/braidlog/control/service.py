"""The control plane itself: hands every call to the part that answers it."""

import asyncio

from braidlog.control import interface as api
from braidlog.control.foundation import Foundation
from braidlog.control.log.feed import Feed
from braidlog.control.metadata.store import CopiedMetadata, MetadataStore, SharedMetadata, Transaction
from braidlog.control.parts import Parts
from braidlog.control.runner import Runner
from braidlog.control.settings import ControlSettings
from braidlog.control.store_owner import refuse_replaced, refuse_wrong_store
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy

_FINISH_S = 10.0
"""How long a control plane that stops waits for changes in flight."""


class ControlService:
    """Implements `ControlPlane` in this process.

    `start` takes over the metadata store: an earlier holder is fenced.
    """

    parts: Parts
    """Only there once it has started."""

    def __init__(
        self, metadata: MetadataStore, store: Store, clock: Clock, entropy: Entropy, settings: ControlSettings
    ) -> None:
        self._metadata = metadata
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._runner = Runner(clock, entropy, metadata.durable)
        self.settings = settings
        self.cluster_id = ""

    @property
    def fenced(self) -> asyncio.Event:
        """Set when another control plane has taken over: this one must be closed."""
        return self._runner.fenced

    async def start(self) -> None:
        # Whoever cannot start must not end the control plane that runs.
        known_id = await self._metadata.peek(_read_cluster_id)
        if known_id is not None:
            await refuse_wrong_store(self._store, self._metadata, known_id)
            await refuse_replaced(self._store, self._metadata)
        epoch = await self._metadata.acquire_fencing_epoch()
        self.cluster_id = await self._load_cluster_id()
        settings = self.settings
        feed = Feed(epoch, self._metadata, events_max=settings.feed_events_max, ring_bytes_max=settings.feed_bytes_max)
        foundation = Foundation(self._metadata, asyncio.Lock(), feed, self._clock)
        self.parts = Parts(foundation, self._store, self._entropy, settings, self.cluster_id)
        await self.parts.load()
        if isinstance(self._metadata, CopiedMetadata):
            self._metadata.enforce_lease()
        lost = self._metadata.lost if isinstance(self._metadata, SharedMetadata) else None
        self._runner.start(self.parts.steps(), lost)

    async def close(self) -> None:
        """Finish what is in flight, then let go of the metadata store.

        What takes too long is given up: a store that does not answer must not keep a process from its end.
        """
        finishing = asyncio.create_task(self._finish(), name="finish what is in flight")
        await asyncio.wait([finishing], timeout=_FINISH_S)
        await self._metadata.close()
        await finishing

    async def _finish(self) -> None:
        await self._runner.stop()
        if self.cluster_id:
            await self.parts.close()

    async def _load_cluster_id(self) -> str:
        proposed = str(self._entropy.uuid())

        def load(tx: Transaction) -> str:
            known = _read_cluster_id(tx)
            if known is not None:
                return known
            tx.execute("INSERT INTO facts (name, value) VALUES ('cluster_id', ?)", (proposed,))
            return proposed

        return await self._metadata.transact(load)

    # ── the change feed ───────────────────────────────────────────────────────────────────────────────────────────

    async def snapshot(self, request: api.SnapshotRequest, *, timeout_s: float | None = None) -> api.Snapshot:
        return await self._runner.within(timeout_s, self._snapshot())

    async def _snapshot(self) -> api.Snapshot:
        # Proves that nobody has taken over; what follows is one moment, because nothing is awaited.
        await self.parts.index.current_bounds(api.BoundsRequest([]))
        return api.Snapshot(
            position=self.parts.feed.position,
            cluster_id=self.cluster_id,
            topics=[topic.info for topic in self.parts.catalog.topics.values()],
            bounds=[state.bounds for state in self.parts.catalog.partitions.values()],
            agents=self.parts.agents.agents,
            cluster_configs=dict(self.parts.catalog.cluster_configs),
            client_quotas=self.parts.quotas.quotas,
            acls=self.parts.acls.acls,
            credentials=self.parts.credentials.credentials,
            store_url=self._store.url,
        )

    async def read_feed(self, request: api.FeedRequest, *, timeout_s: float | None = None) -> api.FeedPage:
        if request.after.fencing_epoch == self._metadata.fencing_epoch:
            self.parts.agents.note_feed(request.incarnation, request.after.revision)
        return await self._runner.within_unseen(timeout_s, self.parts.feed.read(request))

    async def describe_cluster(
        self, request: api.DescribeCluster, *, timeout_s: float | None = None
    ) -> api.ClusterDescription:
        return await self._runner.within(timeout_s, self.parts.overview.describe(self.cluster_id))

    # ── agents ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def register_agent(self, request: api.RegisterAgent, *, timeout_s: float | None = None) -> api.Registered:
        return await self._runner.within(timeout_s, self._register_agent(request), change=True)

    async def _register_agent(self, request: api.RegisterAgent) -> api.Registered:
        info = await self.parts.agents.register(request)
        if request.journals:
            await self.parts.journals.agent_journals()
        return api.Registered(
            node_id=info.node_id,
            cluster_id=self.cluster_id,
            write_epoch=self.parts.epochs.current,
            fencing_epoch=self._metadata.fencing_epoch,
            heartbeat_interval_ms=int(self.parts.agents.heartbeat_interval_s * 1000),
        )

    async def heartbeat_agent(
        self, request: api.AgentHeartbeat, *, timeout_s: float | None = None
    ) -> api.HeartbeatAnswer:
        return await self._runner.look(timeout_s, lambda: self._heartbeat_agent(request))

    def _heartbeat_agent(self, request: api.AgentHeartbeat) -> api.HeartbeatAnswer:
        known = self.parts.agents.heartbeat(request)
        replayed = self.parts.journals.backlog.scans_replayed
        return api.HeartbeatAnswer(known, self.parts.epochs.current, self._metadata.fencing_epoch, replayed)

    async def leave_agent(self, request: api.AgentLeave, *, timeout_s: float | None = None) -> api.Done:
        await self._runner.within(timeout_s, self.parts.agents.leave(request), change=True)
        return api.Done()

    async def fence_agent(self, request: api.FenceAgent, *, timeout_s: float | None = None) -> api.Done:
        await self._runner.within(timeout_s, self.parts.epochs.fence(request.incarnation), change=True)
        return api.Done()

    # ── sequencer and index ───────────────────────────────────────────────────────────────────────────────────────

    async def commit_object(self, request: api.CommitObject, *, timeout_s: float | None = None) -> api.ObjectVerdict:
        return await self._runner.within(timeout_s, self._commit_object(request))

    async def _commit_object(self, request: api.CommitObject) -> api.ObjectVerdict:
        if not request.replayed:
            return await self.parts.sequencer.commit(request)
        async with self.parts.replay_pace.turn():
            return await self.parts.sequencer.commit(request)

    async def find_extents(self, request: api.FindExtents, *, timeout_s: float | None = None) -> api.FoundExtents:
        return await self._runner.within(timeout_s, self.parts.index.find_extents(request))

    async def find_timestamp(self, request: api.FindTimestamp, *, timeout_s: float | None = None) -> api.FoundExtents:
        return await self._runner.within(timeout_s, self.parts.index.find_timestamp(request))

    async def current_bounds(self, request: api.BoundsRequest, *, timeout_s: float | None = None) -> api.BoundsAnswer:
        return await self._runner.within(timeout_s, self.parts.index.current_bounds(request))

    async def delete_records(self, request: api.DeleteRecords, *, timeout_s: float | None = None) -> api.DeletedRecords:
        return await self._runner.within(timeout_s, self.parts.index.delete_records(request), change=True)

    async def init_producer_id(
        self, request: api.InitProducerId, *, timeout_s: float | None = None
    ) -> api.ProducerIdentity:
        who = self.parts.producers if request.transactional_id is None else self.parts.transactions
        return await self._runner.within(timeout_s, who.init(request), change=True)

    async def lease_write_epoch(
        self, request: api.LeaseWriteEpoch, *, timeout_s: float | None = None
    ) -> api.WriteLease:
        return await self._runner.within(timeout_s, self.parts.writers.lease(request), change=True)

    async def commit_objects(
        self, request: api.CommitObjects, *, timeout_s: float | None = None
    ) -> api.CommittedObjects:
        return await self._runner.within(timeout_s, self.parts.writers.commit(request), change=True)

    # ── jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def take_jobs(self, request: api.TakeJobs, *, timeout_s: float | None = None) -> api.TakenJobs:
        return await self._runner.within(timeout_s, self.parts.jobs.take(request))

    async def heartbeat_jobs(self, request: api.HeartbeatJobs, *, timeout_s: float | None = None) -> api.JobHeartbeats:
        return await self._runner.look(timeout_s, lambda: self.parts.jobs.heartbeat(request))

    async def complete_job(self, request: api.CompleteJob, *, timeout_s: float | None = None) -> api.JobVerdict:
        return await self._runner.within(timeout_s, self.parts.job_results.complete(request), change=True)

    async def fail_job(self, request: api.FailJob, *, timeout_s: float | None = None) -> api.Done:
        await self._runner.within(timeout_s, self.parts.job_results.fail(request), change=True)
        return api.Done()

    async def list_jobs(self, request: api.ListJobs, *, timeout_s: float | None = None) -> api.JobListings:
        return await self._runner.look(timeout_s, lambda: self.parts.jobs.list(request))

    async def request_compaction(
        self, request: api.RequestCompaction, *, timeout_s: float | None = None
    ) -> api.CompactionRequested:
        return await self._runner.within(timeout_s, self.parts.planner.request_compaction(request), change=True)

    # ── journals ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def request_scan(self, request: api.RequestScan, *, timeout_s: float | None = None) -> api.ScanRequested:
        return await self._runner.within(timeout_s, self.parts.journals.request_scan(request), change=True)

    async def end_sequence(self, request: api.EndSequence, *, timeout_s: float | None = None) -> api.Done:
        await self._runner.within(timeout_s, self.parts.journals.end_sequence(request), change=True)
        return api.Done()

    async def describe_journals(
        self, request: api.DescribeJournals, *, timeout_s: float | None = None
    ) -> api.JournalDescription:
        return await self._runner.look(timeout_s, lambda: self.parts.journals.describe(request))

    # ── topics, configs and quotas ────────────────────────────────────────────────────────────────────────────────

    async def create_topics(self, request: api.CreateTopics, *, timeout_s: float | None = None) -> api.TopicOutcomes:
        return await self._runner.within(timeout_s, self.parts.catalog.create_topics(request), change=True)

    async def delete_topics(self, request: api.DeleteTopics, *, timeout_s: float | None = None) -> api.TopicOutcomes:
        return await self._runner.within(timeout_s, self.parts.administration.delete_topics(request), change=True)

    async def create_partitions(
        self, request: api.CreatePartitions, *, timeout_s: float | None = None
    ) -> api.TopicOutcomes:
        return await self._runner.within(timeout_s, self.parts.catalog.create_partitions(request), change=True)

    async def assign_replicas(self, request: api.AssignReplicas, *, timeout_s: float | None = None) -> api.Outcome:
        return await self._runner.within(timeout_s, self.parts.catalog.assign_replicas(request), change=True)

    async def alter_configs(self, request: api.AlterConfigs, *, timeout_s: float | None = None) -> api.Outcome:
        return await self._runner.within(timeout_s, self.parts.administration.alter_configs(request), change=True)

    async def describe_configs(
        self, request: api.DescribeConfigs, *, timeout_s: float | None = None
    ) -> api.DescribedConfigs:
        return await self._runner.within(timeout_s, self.parts.administration.describe_configs(request))

    async def list_config_resources(
        self, request: api.ListConfigResources, *, timeout_s: float | None = None
    ) -> api.ConfigResources:
        return await self._runner.within(timeout_s, self.parts.administration.list_config_resources(request))

    async def alter_client_quotas(
        self, request: api.AlterClientQuotas, *, timeout_s: float | None = None
    ) -> api.QuotaOutcomes:
        return await self._runner.within(timeout_s, self.parts.quotas.alter(request), change=True)

    async def create_acls(self, request: api.CreateAcls, *, timeout_s: float | None = None) -> api.AclOutcomes:
        return await self._runner.within(timeout_s, self.parts.acls.create(request), change=True)

    async def delete_acls(self, request: api.DeleteAcls, *, timeout_s: float | None = None) -> api.DeletedAcls:
        return await self._runner.within(timeout_s, self.parts.acls.delete(request), change=True)

    async def alter_credentials(
        self, request: api.AlterCredentials, *, timeout_s: float | None = None
    ) -> api.CredentialOutcomes:
        return await self._runner.within(timeout_s, self.parts.credentials.alter(request), change=True)

    # ── consumer groups ───────────────────────────────────────────────────────────────────────────────────────────

    async def join_group(self, request: api.JoinGroup, *, timeout_s: float | None = None) -> api.JoinAnswer:
        return await self._runner.within(timeout_s, self.parts.groups.join_group(request))

    async def sync_group(self, request: api.SyncGroup, *, timeout_s: float | None = None) -> api.SyncAnswer:
        return await self._runner.within(timeout_s, self.parts.groups.sync_group(request))

    async def heartbeat_group(self, request: api.GroupHeartbeat, *, timeout_s: float | None = None) -> api.Outcome:
        return await self._runner.within(timeout_s, self.parts.groups.heartbeat_group(request))

    async def leave_group(self, request: api.LeaveGroup, *, timeout_s: float | None = None) -> api.LeaveAnswer:
        return await self._runner.within(timeout_s, self.parts.groups.leave_group(request), change=True)

    async def commit_offsets(
        self, request: api.CommitOffsets, *, timeout_s: float | None = None
    ) -> api.CommitOffsetsAnswer:
        return await self._runner.within(timeout_s, self.parts.groups.commits.commit_offsets(request), change=True)

    async def fetch_offsets(
        self, request: api.FetchOffsets, *, timeout_s: float | None = None
    ) -> api.FetchOffsetsAnswer:
        return await self._runner.within(timeout_s, self._fetch_offsets(request))

    async def _fetch_offsets(self, request: api.FetchOffsets) -> api.FetchOffsetsAnswer:
        answer = await self.parts.groups.commits.fetch_offsets(request)
        return self.parts.transactions.mark_unstable(request, answer) if request.require_stable else answer

    async def delete_offsets(
        self, request: api.DeleteOffsets, *, timeout_s: float | None = None
    ) -> api.DeleteOffsetsAnswer:
        return await self._runner.within(timeout_s, self.parts.groups.commits.delete_offsets(request), change=True)

    async def list_groups(self, request: api.ListGroups, *, timeout_s: float | None = None) -> api.GroupListings:
        return await self._runner.within(timeout_s, self.parts.groups.list_groups(request))

    async def describe_groups(
        self, request: api.DescribeGroups, *, timeout_s: float | None = None
    ) -> api.GroupDescriptions:
        return await self._runner.within(timeout_s, self.parts.groups.describe_groups(request))

    async def delete_groups(self, request: api.DeleteGroups, *, timeout_s: float | None = None) -> api.GroupOutcomes:
        return await self._runner.within(timeout_s, self.parts.groups.delete_groups(request), change=True)

    async def heartbeat_consumer(
        self, request: api.ConsumerHeartbeat, *, timeout_s: float | None = None
    ) -> api.ConsumerHeartbeatAnswer:
        return await self._runner.within(timeout_s, self.parts.groups.heartbeat_consumer(request))

    async def describe_consumer_groups(
        self, request: api.DescribeConsumerGroups, *, timeout_s: float | None = None
    ) -> api.ConsumerGroupDescriptions:
        return await self._runner.within(timeout_s, self.parts.groups.describe_consumer_groups(request))

    # ── transactions ──────────────────────────────────────────────────────────────────────────────────────────────

    async def add_partitions_to_transaction(
        self, request: api.AddPartitionsToTransaction, *, timeout_s: float | None = None
    ) -> api.AddedPartitions:
        return await self._runner.within(timeout_s, self.parts.transactions.add_partitions(request), change=True)

    async def add_group_to_transaction(
        self, request: api.AddGroupToTransaction, *, timeout_s: float | None = None
    ) -> api.Outcome:
        return await self._runner.within(timeout_s, self.parts.transactions.add_group(request), change=True)

    async def commit_transaction_offsets(
        self, request: api.CommitTransactionOffsets, *, timeout_s: float | None = None
    ) -> api.CommitOffsetsAnswer:
        return await self._runner.within(timeout_s, self.parts.transactions.commit_offsets(request), change=True)

    async def end_transaction(
        self, request: api.EndTransaction, *, timeout_s: float | None = None
    ) -> api.ProducerIdentity:
        return await self._runner.within(timeout_s, self.parts.transactions.end(request), change=True)

    async def abort_marked(self, request: api.AbortMarked, *, timeout_s: float | None = None) -> api.Outcome:
        return await self._runner.within(timeout_s, self.parts.transactions.abort_marked(request), change=True)

    async def find_aborted(self, request: api.FindAborted, *, timeout_s: float | None = None) -> api.FoundAborted:
        return await self._runner.within(timeout_s, self.parts.transactions.queries.find_aborted(request))

    async def describe_transactions(
        self, request: api.DescribeTransactions, *, timeout_s: float | None = None
    ) -> api.TransactionDescriptions:
        return await self._runner.within(timeout_s, self.parts.transactions.queries.describe(request))

    async def list_transactions(
        self, request: api.ListTransactions, *, timeout_s: float | None = None
    ) -> api.TransactionListings:
        return await self._runner.within(timeout_s, self.parts.transactions.queries.list(request))

    async def describe_producers(
        self, request: api.DescribeProducers, *, timeout_s: float | None = None
    ) -> api.ProducerDescriptions:
        return await self._runner.within(
            timeout_s, self.parts.transactions.queries.describe_producers(request), change=True
        )


def _read_cluster_id(tx: Transaction) -> str | None:
    rows = tx.query("SELECT value FROM facts WHERE name = 'cluster_id'")
    return str(rows[0][0]) if rows else None
