"""Reads batches for one task: through the node's cache, or from the store."""

from collections.abc import Sequence

from braidlog.cache.layers import StoreLayer
from braidlog.cache.ranges import Range
from braidlog.objects.store import Bytes
from braidlog.spark.shuffle.notification import Notification
from braidlog.spark.shuffle.service.client import ServiceMember


class NodeReader:
    """Asks the node's cache, and the store where the cache does not answer.

    If the task's batches are more than the zone's caches hold, it reads its own ranges from the store: each batch would
    have to go before the next task reads another range of it.
    """

    def __init__(self, member: ServiceMember, bottom: StoreLayer, notifications: Sequence[Notification]) -> None:
        self._member = member
        self._bottom = bottom
        self._demand_bytes = sum({each.key: each.object_bytes for each in notifications}.values())

    async def read(self, key: str, object_size: int, start: int, end: int) -> Bytes:
        facts = self._member.facts
        if facts is not None and self._demand_bytes <= facts.cached_bytes_max:
            found = await self._member.read(Range(key, object_size, start, end))
            if found is not None and len(found) == end - start:
                return found
        return await self._bottom.read(key, object_size, start, end)
