"""The sweeper: deletes unreferenced objects that can never be sequenced again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from braidlog.control.foundation import Foundation
from braidlog.control.log.write_epochs import EpochLeases, WriteEpochs
from braidlog.control.metadata.counters import read_counter, write_counter
from braidlog.control.metadata.store import Transaction, wait_copied
from braidlog.objects.keys import InvalidKey, data_prefixes, parse_data_key
from braidlog.objects.store import Store

_SWEPT = "swept_epoch"
_FULL_SWEEP_MS = "full_sweep_ms"
_LIST_PAGE = 1_000
_OBJECTS_PER_STEP = 1_000


@dataclass(frozen=True, slots=True)
class Swept:
    listed_count: int
    orphan_count: int
    """Deleted objects that were never (or are no longer) in the index: failed uploads and commits."""
    unreferenced_count: int
    """Deleted objects whose last extent was dropped."""


class JournalFiles(Protocol):
    def may_delete(self, key: str) -> bool:
        """Whether an unreferenced object may be deleted.

        It may not while it is an unsequenced journal file.
        """
        ...


class Sweeper:
    """Raises the floor of write epochs, then deletes orphans below it.

    It also deletes objects whose last extent was dropped a while ago.
    """

    def __init__(
        self,
        foundation: Foundation,
        epochs: WriteEpochs,
        store: Store,
        leases: Sequence[EpochLeases],
        journal_files: JournalFiles,
        *,
        grace_epochs: int,
        unreferenced_grace_ms: int,
        full_sweep_interval_ms: int,
    ) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._epochs = epochs
        self._leases = leases
        self._journal_files = journal_files
        self._store = store
        self._clock = foundation.clock
        self._grace_epochs = grace_epochs
        self._unreferenced_grace_ms = unreferenced_grace_ms
        self._full_sweep_interval_ms = full_sweep_interval_ms

    async def run_once(self) -> Swept:
        # The floor comes first: from here on nothing below it can be committed, however late it arrives.
        floor = await self._epochs.raise_floor(self._epochs.current - self._grace_epochs, self._leases)
        # Nor may a restore append what is below it, or refer to what is deleted: the copy must know first.
        await wait_copied(self._metadata)
        listed, orphans = await self._sweep_orphans(floor)
        unreferenced = await self._delete_unreferenced()
        await self._forget_objects(floor)
        return Swept(listed, orphans, unreferenced)

    async def _sweep_orphans(self, floor: int) -> tuple[int, int]:
        """Delete orphans below the floor.

        Returns how many objects were listed, and how many deleted. Lists the epochs that were not swept yet; now and
        then all, for uploads that arrived after their epoch was swept.
        """
        now_ms = self._clock.wall_ms()
        swept, full_ms = await self._metadata.read(
            lambda tx: (read_counter(tx, _SWEPT), read_counter(tx, _FULL_SWEEP_MS, now_ms))
        )
        full = now_ms - full_ms >= self._full_sweep_interval_ms
        start = 0 if full else swept
        if start >= floor:
            return 0, 0
        listed = orphans = 0
        for prefix in data_prefixes():
            prefix_listed, prefix_orphans = await self._sweep_prefix(prefix, start, floor)
            listed += prefix_listed
            orphans += prefix_orphans

        def remember(tx: Transaction) -> None:
            write_counter(tx, _SWEPT, floor)
            write_counter(tx, _FULL_SWEEP_MS, now_ms if full else full_ms)

        async with self._state_lock:
            await self._metadata.plan(remember)
        return listed, orphans

    async def _sweep_prefix(self, prefix: str, start: int, floor: int) -> tuple[int, int]:
        listed = orphans = 0
        end = f"{prefix}{floor:010d}/"
        after: str | None = f"{prefix}{start:010d}/"
        while after is not None:
            page = await self._store.list(prefix, after=after, limit=_LIST_PAGE)
            keys = [meta.key for meta in page.objects if meta.key < end]
            listed += len(keys)
            candidates = [key for key in keys if _is_below(key, floor)]
            known = await self._metadata.read(lambda tx, wanted=candidates: _known_keys(tx, wanted))  # type: ignore[misc]
            unknown = [key for key in candidates if key not in known]
            if unknown:
                await self._metadata.durable()  # the floor, and whatever made these keys unknown
                await self._store.delete(unknown)
                orphans += len(unknown)
            after = page.next_after if len(keys) == len(page.objects) else None
        return listed, orphans

    async def _delete_unreferenced(self) -> int:
        deleted = 0
        now_ms = self._clock.wall_ms()
        limit_ms = now_ms - self._unreferenced_grace_ms
        # Each step goes on behind the last row of the step before: rows that must stay do not hold up the rest.
        after = (-1, -1)
        while True:
            rows = await self._metadata.read(
                lambda tx, after=after: tx.query(  # type: ignore[misc]  # bound now
                    "SELECT unreferenced_ms, number, object_key FROM objects WHERE unreferenced_ms IS NOT NULL"
                    " AND unreferenced_ms <= ? AND (unreferenced_ms, number) > (?, ?)"
                    " AND deleted_ms IS NULL AND live_count = 0 ORDER BY unreferenced_ms, number LIMIT ?",
                    (limit_ms, *after, _OBJECTS_PER_STEP),
                )
            )
            if not rows:
                return deleted
            after = (rows[-1][0], rows[-1][1])
            may_go = [(number, key) for _, number, key in rows if self._journal_files.may_delete(key)]
            if not may_go:
                continue
            await wait_copied(self._metadata)  # until then a crash may bring references back
            # First the object, then the mark: a crash in between deletes it once more, which is no error.
            await self._store.delete([key for _, key in may_go])
            marks = [(now_ms, number) for number, _ in may_go]
            async with self._state_lock:
                await self._metadata.plan(
                    lambda tx, marks=marks: tx.executemany(  # type: ignore[misc]  # bound now
                        "UPDATE objects SET deleted_ms = ? WHERE number = ?", marks
                    )
                )
            deleted += len(may_go)

    async def _forget_objects(self, floor: int) -> None:
        """Forget objects below the floor, where no nonce is needed any more.

        This drops the rows of deleted objects, and the verdicts of others.
        """

        def forget(tx: Transaction) -> int:
            done = tx.execute(
                "DELETE FROM objects WHERE number IN (SELECT number FROM objects WHERE unreferenced_ms IS NOT NULL"
                " AND deleted_ms IS NOT NULL AND write_epoch < ? ORDER BY number LIMIT ?)",
                (floor, _OBJECTS_PER_STEP),
            )
            return done + tx.execute(
                "UPDATE objects SET verdict = NULL WHERE number IN (SELECT number FROM objects"
                " WHERE verdict IS NOT NULL AND write_epoch < ? ORDER BY number LIMIT ?)",
                (floor, _OBJECTS_PER_STEP),
            )

        while True:
            async with self._state_lock:
                if not await self._metadata.plan(forget):
                    return


def _is_below(key: str, floor: int) -> bool:
    """Whether a key is below the floor. Keys that are not ours are left alone."""
    try:
        return parse_data_key(key).write_epoch < floor
    except InvalidKey:
        return False


def _known_keys(tx: Transaction, keys: list[str]) -> frozenset[str]:
    return frozenset(
        row[0] for key in keys for row in tx.query("SELECT object_key FROM objects WHERE object_key = ?", (key,))
    )
