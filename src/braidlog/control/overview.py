"""Describes the whole cluster, as this control plane sees it."""

from collections import Counter

from braidlog.control.agents import AgentRegistry
from braidlog.control.catalog import Catalog
from braidlog.control.foundation import Foundation
from braidlog.control.interface import (
    ClusterDescription,
    CopyStatus,
    ListJobs,
    StandbyStatus,
)
from braidlog.control.jobs.board import JobBoard
from braidlog.control.journals.journals import Journals
from braidlog.control.metadata.store import CopiedMetadata, DeltaFollower
from braidlog.control.standbys import read_notices
from braidlog.objects.store import Store, StoreError


class Overview:
    def __init__(
        self,
        foundation: Foundation,
        store: Store,
        catalog: Catalog,
        agents: AgentRegistry,
        jobs: JobBoard,
        journals: Journals,
        holder: str,
    ) -> None:
        """`holder` is the name of this control plane."""
        self._metadata = foundation.metadata
        self._feed = foundation.feed
        self._clock = foundation.clock
        self._store = store
        self._catalog = catalog
        self._agents = agents
        self._jobs = jobs
        self._journals = journals
        self._holder = holder
        self._active_since_ms = foundation.clock.wall_ms()

    async def describe(self, cluster_id: str) -> ClusterDescription:
        # Proves that this control plane is the active one.
        await self._metadata.read(lambda tx: None)
        standbys = await self._standbys()
        revision = self._feed.position.revision
        return ClusterDescription(
            cluster_id=cluster_id,
            store_url=self._store.url,
            holder=self._holder,
            active_since_ms=self._active_since_ms,
            fencing_epoch=self._metadata.fencing_epoch,
            feed_revision=revision,
            agents=self._agents.statuses(revision),
            standbys=standbys,
            jobs=dict(Counter(each.state for each in self._jobs.list(ListJobs()).jobs)),
            journals=self._journals.statistics(),
            copy=self._copy(),
            topic_count=len(self._catalog.topics),
            partition_count=len(self._catalog.partitions),
        )

    async def _standbys(self) -> list[StandbyStatus]:
        try:
            notices = await read_notices(self._store, self._clock.wall_ms())
        except StoreError:
            return []  # the rest of the answer is still worth having
        newest = self._metadata.delta_number if isinstance(self._metadata, DeltaFollower) else -1
        return [
            StandbyStatus(each.name, max(0, newest - each.position) if each.position >= 0 else -1, age_ms)
            for each, age_ms in notices
            if each.name != self._holder
        ]

    def _copy(self) -> CopyStatus:
        if isinstance(self._metadata, DeltaFollower):
            return CopyStatus("itself", 0, self._metadata.delta_number)
        if isinstance(self._metadata, CopiedMetadata):
            copy = self._metadata
            return CopyStatus("shipped", int(copy.copy_age_s * 1000), copy.copy_position, copy.copy_trouble)
        return CopyStatus("none", -1)
