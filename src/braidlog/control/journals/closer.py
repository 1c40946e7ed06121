"""Closes journal sequences that nothing refers to any more.

Their files are swept like other objects.
"""

from collections.abc import Callable

from braidlog.control.foundation import Foundation
from braidlog.control.journals.sequences import JournalSequenceKey, JournalSequenceRecord, JournalSequences
from braidlog.control.metadata.counters import read_counter, write_counter
from braidlog.control.metadata.store import Transaction, wait_copied
from braidlog.objects.keys import (
    JOURNAL_PREFIX,
    SLOTS_PER_SEQUENCE_MAX,
    InvalidKey,
    journal_key,
    parse_journal_key,
    sequence_prefix,
)
from braidlog.objects.store import Store

_FULL_SWEEP_MS = "journals_full_sweep_ms"
_CLOSED_PER_SWEEP_MAX = 1_000
_AGES_KEPT = 4
"""How many times its intended age a sealed journal sequence is kept. A process that slept writes nothing into one that
is twice that old; until then its fences must stay."""


class JournalCloser:
    def __init__(
        self,
        foundation: Foundation,
        sequences: JournalSequences,
        store: Store,
        *,
        sequence_age_s: float,
        full_sweep_interval_s: float,
    ) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._sequences = sequences
        self._store = store
        self._clock = foundation.clock
        self._kept_ms = int(_AGES_KEPT * sequence_age_s * 1000)
        self._full_sweep_interval_ms = int(full_sweep_interval_s * 1000)

    def may_delete(self, key: str) -> bool:
        """Whether an unreferenced object may be deleted.

        A journal file may go only once its slot is recorded as sequenced.
        """
        if not key.startswith(JOURNAL_PREFIX):
            return True
        try:
            place = parse_journal_key(key)
        except InvalidKey:
            return False
        return self._sequences.is_sequenced((place.incarnation, place.sequence), place.slot)

    async def run_once(self) -> int:
        """Close the journal sequences that can be closed. Returns how many."""
        opened_ms_max = self._clock.wall_ms() - self._kept_ms
        candidates = [
            record
            for record in self._sequences.records.values()
            if record.is_complete and (record.opened_ms <= opened_ms_max or record.key in self._sequences.ended)
        ]
        closed = 0
        for record in candidates[:_CLOSED_PER_SWEEP_MAX]:
            key = record.key
            if not await self._metadata.read(lambda tx, key=key: _has_objects(tx, key)):  # type: ignore[misc]  # bound now
                await self._close(record)
                closed += 1
        await self._sweep_all_when_due()
        return closed

    async def _sweep_all_when_due(self) -> None:
        now_ms = self._clock.wall_ms()
        swept_ms = await self._metadata.read(lambda tx: read_counter(tx, _FULL_SWEEP_MS))
        if now_ms - swept_ms < self._full_sweep_interval_ms:
            return
        if swept_ms:  # the first time only starts the interval
            await self._delete_left(JOURNAL_PREFIX, self._is_closed)
        async with self._state_lock:
            await self._metadata.plan(lambda tx: write_counter(tx, _FULL_SWEEP_MS, now_ms))

    def _is_closed(self, key: str) -> bool:
        """Whether a file appeared after its sequence was closed.

        The store then carried out a put long after it was sent, and nobody was told.
        """
        try:
            place = parse_journal_key(key)
        except InvalidKey:
            return False
        return self._sequences.is_closed((place.incarnation, place.sequence))

    async def _close(self, record: JournalSequenceRecord) -> None:
        """Delete what is left in the folder, mostly fences, and then mark it closed.

        A crash in between only repeats this.
        """
        await self._delete_left(sequence_prefix(*record.key), self.may_delete)
        async with self._state_lock:
            await self._metadata.plan(lambda tx: self._sequences.write_closed(tx, record.key))
            self._sequences.close(record.key)

    async def _delete_left(self, prefix: str, may_delete: Callable[[str], bool]) -> None:
        after: str | None = None
        while True:
            page = await self._store.list(prefix, after=after, limit=SLOTS_PER_SEQUENCE_MAX)
            left = [meta.key for meta in page.objects if may_delete(meta.key)]
            if left:
                await wait_copied(self._metadata)
                await self._store.delete(left)
            after = page.next_after
            if after is None:
                return


def _has_objects(tx: Transaction, key: JournalSequenceKey) -> bool:
    """Whether any file of the journal sequence still exists."""
    first, last = journal_key(*key, 0), journal_key(*key, SLOTS_PER_SEQUENCE_MAX - 1)
    rows = tx.query(
        "SELECT 1 FROM objects WHERE object_key BETWEEN ? AND ? AND deleted_ms IS NULL LIMIT 1", (first, last)
    )
    return bool(rows)
