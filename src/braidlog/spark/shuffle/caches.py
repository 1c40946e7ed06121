"""The caches between the tasks of a shuffle and the store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from braidlog.cache.layers import Layer, MemoryLayer, StoreLayer
from braidlog.cache.zone_ring import ZoneRingLayer
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.quantities import parse_bytes
from braidlog.spark.errors import JobError


@dataclass(frozen=True, slots=True)
class ShuffleCache:
    """Names the caches of a shuffle. By default there are none."""

    memory_bytes: int = 0
    """Memory of each Python worker for batches of which it reads more than one partition."""
    whole: bool = True
    """Whether the memory holds whole batches, or only the ranges that were read."""
    members: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The cache ring of each zone: addresses of `braid shuffle cache`."""

    @classmethod
    def of(
        cls, *, memory: int | str = 0, whole: bool = True, members: Mapping[str, Sequence[str]] | Sequence[str] = ()
    ) -> "ShuffleCache":
        """Make a cache description.

        `members` are the addresses of each zone's caches; a list is for all zones.
        """
        by_zone = members if isinstance(members, Mapping) else {"": members}
        try:
            memory_bytes = parse_bytes(memory)
        except ValueError as error:
            raise JobError(f"the memory of the cache {error}", help='For example memory="256MiB".') from error
        return cls(memory_bytes, whole, tuple((zone, tuple(found)) for zone, found in sorted(by_zone.items()) if found))

    def members_of(self, zone: str) -> dict[str, str]:
        """Return the cache ring of a zone. A zone without one goes straight to the store."""
        rings = dict(self.members)
        return {address: address for address in rings.get(zone, rings.get("", ()))}

    def build(self, store: Store, zone: str, *, clock: Clock, entropy: Entropy) -> Layer:
        layer: Layer = StoreLayer(store)
        members = self.members_of(zone)
        if members:
            layer = ZoneRingLayer(store, members, clock=clock, entropy=entropy)
        if self.memory_bytes:
            layer = MemoryLayer(layer, bytes_max=self.memory_bytes, whole=self.whole)
        return layer


NO_CACHE = ShuffleCache()
