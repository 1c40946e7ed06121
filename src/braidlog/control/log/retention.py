"""Retention: drops whole extents that are too old or too many.

It also drops the extents of deleted topics.
"""

from braidlog.configs.topic import TopicSettings
from braidlog.control.catalog import Catalog
from braidlog.control.foundation import Foundation
from braidlog.control.log.index import EXTENTS_PER_REMOVAL_MAX, ExtentIndex, drop_extents
from braidlog.control.log.producers import Producers
from braidlog.control.log.recent import RecentExtents
from braidlog.control.metadata.store import Transaction
from braidlog.control.transactions.aborted import drop_aborted

_PARTITIONS_PER_STEP = 100


class Retention:
    def __init__(
        self,
        foundation: Foundation,
        catalog: Catalog,
        index: ExtentIndex,
        recent: RecentExtents,
        producers: Producers,
    ) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._catalog = catalog
        self._index = index
        self._recent = recent
        self._producers = producers
        self._clock = foundation.clock

    async def run_once(self) -> int:
        """Apply retention to every partition. Returns how many extents were dropped."""
        await self._recent.settle_in_steps(self._state_lock)
        dropped = await self._remove_deleted()
        for topic in list(self._catalog.topics.values()):
            settings = self._catalog.settings(topic)
            for state in topic.partitions:
                if not state.size_bytes:
                    continue
                start = await self._new_start(state.partition_id, settings)
                if start is not None:
                    dropped += await self._index.remove_front(state.partition_id, start)
        return dropped

    async def _new_start(self, partition_id: int, settings: TopicSettings) -> int | None:
        """Return where the log should start.

        Returns None if it starts there, and no extents are left below.
        """
        deletes = "delete" in settings.cleanup_policy
        expired_ms = self._clock.wall_ms() - settings.retention_ms if settings.retention_ms >= 0 else None

        def search(tx: Transaction) -> int | None:
            rows = tx.query(
                "SELECT log_start_offset, settled_offset, size_bytes FROM partitions WHERE partition_id = ?",
                (partition_id,),
            )
            if not rows:
                return None
            start, settled_offset, size_bytes = rows[0]
            wanted = start
            if deletes and expired_ms is not None:
                wanted = max(wanted, _first_unexpired(tx, partition_id, expired_ms, settled_offset))
            if deletes and 0 <= settings.retention_bytes < size_bytes:
                wanted = max(wanted, _first_within(tx, partition_id, size_bytes - settings.retention_bytes, start))
            first = tx.query(
                "SELECT end_offset FROM extents WHERE partition_id = ? ORDER BY base_offset LIMIT 1", (partition_id,)
            )
            # A removal that a crash cut short leaves extents below the start.
            return int(wanted) if wanted > start or (first and first[0][0] <= start) else None

        return await self._metadata.read(search)

    async def _remove_deleted(self) -> int:
        """Drop the extents of deleted topics, in steps.

        Each step holds up the sequencer only shortly.
        """
        dropped = 0
        while True:
            async with self._state_lock:
                now_ms = self._clock.wall_ms()
                # Only extents in the table can be dropped. Few have become recent since the start of this run.
                await self._recent.settle()
                gone, count = await self._metadata.plan(
                    lambda tx, now=now_ms: _drop_removed(tx, now)  # type: ignore[misc]  # bound now, not at the call
                )
                self._producers.forget_partitions(gone)
            dropped += count
            if not gone and not count:
                return dropped


def _first_unexpired(tx: Transaction, partition_id: int, expired_ms: int, settled_offset: int) -> int:
    """Return the first offset that is not expired.

    Records without a timestamp are as old as their object's commit.
    """
    rows = tx.query(
        "SELECT e.base_offset FROM extents e LEFT JOIN objects o ON o.number = e.object_number WHERE e.partition_id = ?"
        " AND CASE WHEN e.timestamp_ms_max < 0 THEN o.committed_ms ELSE e.timestamp_ms_max END >= ?"
        " ORDER BY e.base_offset LIMIT 1",
        (partition_id, expired_ms),
    )
    return int(rows[0][0]) if rows else settled_offset


def _first_within(tx: Transaction, partition_id: int, excess_bytes: int, start: int) -> int:
    """Return the offset after the oldest extents that together fit into the excess.

    Never keeps less than was asked for.
    """
    rows = tx.query(
        "SELECT end_offset, length FROM extents WHERE partition_id = ? ORDER BY base_offset LIMIT ?",
        (partition_id, EXTENTS_PER_REMOVAL_MAX),
    )
    for end_offset, length in rows:
        excess_bytes -= length
        if excess_bytes < 0:
            break
        start = end_offset
    return start


def _drop_removed(tx: Transaction, now_ms: int) -> tuple[list[int], int]:
    """Do one step.

    Returns the partitions that are now gone for good, and how many extents were dropped.
    """
    gone: list[int] = []
    dropped = 0
    rows = tx.query(
        "SELECT partition_id FROM partitions WHERE removed_ms IS NOT NULL ORDER BY partition_id LIMIT ?",
        (_PARTITIONS_PER_STEP,),
    )
    for (partition_id,) in rows:
        count, _ = drop_extents(tx, partition_id, None, now_ms)
        dropped += count
        if count == EXTENTS_PER_REMOVAL_MAX:
            break
        drop_aborted(tx, partition_id, None)
        tx.execute("DELETE FROM producer_partitions WHERE partition_id = ?", (partition_id,))
        tx.execute("DELETE FROM partition_compactions WHERE partition_id = ?", (partition_id,))
        tx.execute("DELETE FROM leader_epochs WHERE partition_id = ?", (partition_id,))
        tx.execute("DELETE FROM partitions WHERE partition_id = ?", (partition_id,))
        gone.append(partition_id)
        if dropped >= EXTENTS_PER_REMOVAL_MAX:
            break
    return gone, dropped
