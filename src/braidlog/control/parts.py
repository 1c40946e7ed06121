"""All parts of a running control plane, each built from the parts that it uses."""

from braidlog.control.administration import Administration
from braidlog.control.agents import AgentRegistry
from braidlog.control.catalog import Catalog
from braidlog.control.client_quotas import ClientQuotas
from braidlog.control.foundation import Foundation
from braidlog.control.groups.catalog_topics import CatalogTopics
from braidlog.control.groups.coordinator import GroupCoordinator
from braidlog.control.interface import EXPIRE, REPLAY, SCAN
from braidlog.control.jobs.board import JobBoard
from braidlog.control.jobs.planner import JobPlanner
from braidlog.control.jobs.results import JobResults
from braidlog.control.journals.backlog import JournalBacklog
from braidlog.control.journals.closer import JournalCloser
from braidlog.control.journals.held_batches import HeldBatches
from braidlog.control.journals.journals import Journals
from braidlog.control.journals.pace import ReplayPace
from braidlog.control.journals.sequences import JournalSequences
from braidlog.control.journals.state import JournalState
from braidlog.control.log.index import ExtentIndex
from braidlog.control.log.producers import Producers
from braidlog.control.log.recent import RecentExtents
from braidlog.control.log.retention import Retention
from braidlog.control.log.sequencer import Sequencer
from braidlog.control.log.sweeper import Sweeper
from braidlog.control.log.write_epochs import WriteEpochs
from braidlog.control.metadata.counters import NumberBlocks
from braidlog.control.overview import Overview
from braidlog.control.resource_configs import ResourceConfigs
from braidlog.control.runner import Step
from braidlog.control.security.acls import Acls
from braidlog.control.security.credentials import Credentials
from braidlog.control.settings import ControlSettings
from braidlog.control.store_owner import CHECK_INTERVAL_S, StoreOwner
from braidlog.control.transactions.coordinator import Transactions
from braidlog.control.writers import Writers
from braidlog.objects.store import Store
from braidlog.runtime.entropy import Entropy

_OBJECT_NUMBER_BLOCK = 10_000


class Parts:
    def __init__(
        self, foundation: Foundation, store: Store, entropy: Entropy, settings: ControlSettings, cluster_id: str
    ) -> None:
        # The epoch is part of each random stream: a restart with the same seed must not repeat its identifiers.
        epoch = foundation.metadata.fencing_epoch
        self.store = store
        self.settings = settings
        self.feed = foundation.feed
        self.store_owner = StoreOwner(store, foundation.metadata, cluster_id)
        self.agents = AgentRegistry(
            foundation,
            heartbeat_interval_s=settings.heartbeat_interval_s,
            session_timeout_s=settings.session_timeout_s,
        )
        self.quotas = ClientQuotas(foundation)
        self.acls = Acls(foundation)
        self.credentials = Credentials(foundation)
        journal_state = self._journal_state(foundation)
        self._build_log(foundation, entropy.fork(f"catalog/{epoch}"), journal_state)
        self.groups = GroupCoordinator(
            foundation.metadata,
            foundation.clock,
            entropy.fork(f"groups/{epoch}"),
            settings.groups,
            CatalogTopics(self.catalog),
        )
        self._build_sequencer(foundation, journal_state)
        self.jobs = JobBoard(
            foundation, self.catalog, self.epochs, entropy.fork(f"jobs/{epoch}"), lease_s=settings.jobs.lease_s
        )
        self.planner = JobPlanner(foundation, self.catalog, self.recent, self.jobs, settings.jobs)
        self._build_journals(foundation, journal_state)
        self.job_results = JobResults(
            foundation, self.jobs, self.catalog, self.epochs, {SCAN: self.journals, REPLAY: self.journals}
        )
        self._build_cleaners(foundation)
        self.overview = Overview(
            foundation, store, self.catalog, self.agents, self.jobs, self.journals, settings.holder
        )
        self.administration = Administration(
            self.catalog, ResourceConfigs(foundation, settings.groups), self.groups, self.journals, settings
        )

    def _journal_state(self, foundation: Foundation) -> JournalState:
        sequences = JournalSequences()
        held = HeldBatches(self.settings.journals.held_batches_max)
        return JournalState(sequences, held, JournalBacklog(sequences, foundation.clock))

    def _build_log(self, foundation: Foundation, entropy: Entropy, journal_state: JournalState) -> None:
        settings = self.settings
        self.epochs = WriteEpochs(foundation)
        self.recent = RecentExtents(foundation.metadata, extents_max=settings.recent_extents_max)
        self.producers = Producers(
            foundation,
            self.recent,
            journal_state.backlog,
            expiration_ms=int(settings.producer_expiration_s * 1000),
            states_max=settings.producer_states_max,
        )
        self.catalog = Catalog(foundation, entropy, self.recent, self.producers)
        self.index = ExtentIndex(foundation, self.catalog, self.recent)

    def _build_sequencer(self, foundation: Foundation, journal_state: JournalState) -> None:
        settings = self.settings
        # Objects and the markers of transactions share one numbering: it is the order in which they were sequenced.
        numbers = NumberBlocks(foundation.metadata, "object_number", _OBJECT_NUMBER_BLOCK)
        self.transactions = Transactions(
            foundation, self.catalog, self.producers, self.recent, numbers, self.groups.commits, settings.transactions
        )
        self.sequencer = Sequencer(
            foundation,
            self.catalog,
            self.producers,
            self.epochs,
            self.recent,
            self.transactions,
            numbers,
            journal_state,
        )
        self.writers = Writers(
            foundation,
            self.sequencer,
            self.epochs,
            store_url=self.store.url,
            lease_ms=int(settings.write_lease_s * 1000),
            expiration_ms=int(settings.writer_expiration_s * 1000),
        )

    def _build_journals(self, foundation: Foundation, journal_state: JournalState) -> None:
        settings = self.settings
        self.journals = Journals(
            foundation,
            self.catalog,
            self.agents,
            self.jobs,
            self.sequencer,
            journal_state,
            settings.journals,
            wait_s_max=settings.producer_expiration_s / 2,
        )
        self.replay_pace = ReplayPace(foundation.clock, files_per_s=settings.journals.replay_files_per_s)
        self.journal_closer = JournalCloser(
            foundation,
            journal_state.sequences,
            self.store,
            sequence_age_s=settings.journals.sequence_age_s,
            full_sweep_interval_s=settings.full_sweep_interval_s,
        )

    def _build_cleaners(self, foundation: Foundation) -> None:
        settings = self.settings
        self.retention = Retention(foundation, self.catalog, self.index, self.recent, self.producers)
        self.sweeper = Sweeper(
            foundation,
            self.epochs,
            self.store,
            [self.writers, self.jobs],
            self.journal_closer,
            grace_epochs=settings.grace_epochs,
            unreferenced_grace_ms=int(settings.unreferenced_grace_s * 1000),
            full_sweep_interval_ms=int(settings.full_sweep_interval_s * 1000),
        )

    async def load(self) -> None:
        """Read the durable state, and settle what an earlier run left."""
        await self.recent.recover()
        await self.catalog.load()
        await self.quotas.load()
        await self.acls.load()
        await self.credentials.load()
        await self.administration.load()
        await self.epochs.load()
        await self.writers.load()
        await self.jobs.load()
        await self.agents.load()
        await self.journals.load()
        await self.groups.start()
        await self.transactions.load()
        if self.journals.backlog.may_exist:
            # Batches that were journaled while no control plane was there should not wait for the next scan.
            await self.journals.plan_once()
        await self.store_owner.check_at_start()

    async def close(self) -> None:
        """Finish what is in flight."""
        self.feed.wake()
        await self.sequencer.close()
        await self.transactions.close()
        await self.groups.close()

    # ── steps that repeat ─────────────────────────────────────────────────────────────────────────────────────────

    def steps(self) -> list[Step]:
        settings = self.settings
        return [
            ("write epochs", settings.epoch_interval_s, self.epochs.advance),
            ("agent sessions", settings.heartbeat_interval_s, self.agents.expire_once),
            ("retention", settings.retention_interval_s, self._expire),
            ("store owner", CHECK_INTERVAL_S, self.store_owner.check),
            ("sweeper", settings.sweep_interval_s, self._sweep),
            ("job planning", settings.jobs.plan_interval_s, self.planner.plan_once),
            ("job leases", settings.jobs.lease_s / 5, self.job_results.expire_once),
            ("producer expiry", settings.producer_expiration_s / 24, self.producers.expire_once),
            ("group expiry", settings.group_expiry_interval_s, self.groups.commits.expire_once),
            ("overdue transactions", settings.transactions.timeout_check_interval_s, self.transactions.abort_overdue),
            ("transactional id expiry", settings.transactions.expiry_check_interval_s, self.transactions.expire_once),
            ("writer expiry", settings.writer_expiration_s / 24, self.writers.expire_once),
            ("journal scans", settings.journals.scan_interval_s, self.journals.plan_once),
            ("gaps of journals", settings.journals.gap_s / 4, self.journals.give_up_once),
        ]

    async def _expire(self) -> None:
        """Apply retention, and note it among the jobs if it has removed anything."""
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
