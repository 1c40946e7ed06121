"""What all tasks of a shuffle must know."""

from dataclasses import dataclass

from braidlog.spark.shuffle.batcher import BatcherSettings
from braidlog.spark.shuffle.caches import NO_CACHE, ShuffleCache
from braidlog.spark.shuffle.debatcher import DebatcherSettings
from braidlog.spark.shuffle.service.settings import NodeSettings, RingSettings
from braidlog.spark.shuffle.tasks.zones import own_zone

LINGER = 0.5
"""How much longer than a full batch a task waits for rows: its input ends soon, and no small batch should be left."""


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """Everything that tasks must know. It travels to them with Spark's plan."""

    store_url: str
    job: str
    zones: tuple[str, ...]
    partitions: int
    batch_bytes: int
    interval_s: float
    compression: str
    uploads_in_flight_max: int
    ahead_bytes_max: int
    zone: str | None
    cache: ShuffleCache = NO_CACHE
    shared: bool = False
    """Whether the tasks of a node fill batches together."""
    share_wait_s: float = 1.0
    ring: RingSettings | None = None

    @property
    def zone_of_partition(self) -> list[str]:
        """The destination zone of each partition.

        Partitions are dealt out to the zones in turn.
        """
        return [self.zones[partition % len(self.zones)] for partition in range(self.partitions)]

    @property
    def own_zone(self) -> str:
        """The zone of this process."""
        is_remote = not self.store_url.startswith("file:")
        return own_zone(self.zone, ask_cloud=len(self.zones) > 1 and is_remote)

    @property
    def batcher_settings(self) -> BatcherSettings:
        return BatcherSettings(
            job=self.job,
            batch_bytes=self.batch_bytes,
            interval_s=self.interval_s,
            compression=self.compression,
            uploads_in_flight_max=self.uploads_in_flight_max,
            linger=LINGER,
            zone=self.own_zone,
        )

    @property
    def uses_node(self) -> bool:
        """Whether tasks need the process beside them."""
        return self.shared or self.cache.is_of_nodes

    @property
    def node_settings(self) -> NodeSettings:
        """What the process beside this node's tasks must know."""
        cache = self.cache if self.cache.is_of_nodes else NO_CACHE
        ring = self.ring if cache.ring else None
        return NodeSettings(self.store_url, self.batcher_settings, self.share_wait_s, cache, ring)

    @property
    def debatcher_settings(self) -> DebatcherSettings:
        return DebatcherSettings(ahead_bytes_max=self.ahead_bytes_max)
