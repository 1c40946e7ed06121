"""The caches between the tasks of a shuffle and the store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from braidlog.cache.layers import Layer, StoreLayer
from braidlog.cache.zone_ring import ZoneRingLayer
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.quantities import parse_bytes
from braidlog.spark.errors import JobError

MEMORY_DEFAULT = "256MiB"


@dataclass(frozen=True, slots=True)
class ShuffleCache:
    """Names the caches of a shuffle. Without any, tasks read from the store."""

    memory_bytes: int = 0
    """Memory of each node for batches."""
    disk_bytes: int = 0
    """Disk of each node for batches."""
    on_write: bool = True
    """Whether a node keeps batches that it writes for its own zone."""
    ring: bool = False
    """Whether the nodes of a zone find each other and read for each other."""
    members: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Caches that run by themselves, in each zone: addresses of `braid shuffle cache`."""

    @classmethod
    def of(
        cls,
        *,
        memory: int | str = 0,
        disk: int | str = 0,
        on_write: bool = True,
        ring: bool = True,
        members: Mapping[str, Sequence[str]] | Sequence[str] = (),
    ) -> "ShuffleCache":
        """Make a cache description.

        `members` are the addresses of each zone's own caches; a list is for all zones. They replace the caches of
        nodes.
        """
        by_zone = members if isinstance(members, Mapping) else {"": members}
        try:
            memory_bytes, disk_bytes = parse_bytes(memory), parse_bytes(disk)
        except ValueError as error:
            raise JobError(f"the size of a cache {error}", help='For example memory="256MiB".') from error
        chosen = tuple((zone, tuple(found)) for zone, found in sorted(by_zone.items()) if found)
        return cls(memory_bytes, disk_bytes, on_write, ring, chosen)

    @property
    def is_of_nodes(self) -> bool:
        """Whether each node has a cache."""
        return not self.members and bool(self.memory_bytes or self.disk_bytes)

    def members_of(self, zone: str) -> dict[str, str]:
        """Return the caches of a zone. A zone without one goes straight to the store."""
        rings = dict(self.members)
        return {address: address for address in rings.get(zone, rings.get("", ()))}

    def build(self, store: Store, zone: str, *, clock: Clock, entropy: Entropy) -> Layer:
        """Return the store behind the caches that run by themselves, if there are any."""
        members = self.members_of(zone)
        return ZoneRingLayer(store, members, clock=clock, entropy=entropy) if members else StoreLayer(store)


NO_CACHE = ShuffleCache()
