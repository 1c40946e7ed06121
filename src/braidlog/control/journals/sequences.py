"""The record of each journal sequence: which slots are sequenced.

So no file is sequenced twice, however late it comes.
"""

from collections.abc import Iterable

import msgspec

from braidlog.control import intervals
from braidlog.control.intervals import Ranges
from braidlog.control.metadata.store import MetadataStore, Transaction
from braidlog.objects.keys import SLOTS_PER_SEQUENCE_MAX

JournalSequenceKey = tuple[str, int]
"""The incarnation of the agent, and the number of the journal sequence."""

_ABANDONED_MAX = 10_000

_encode = msgspec.msgpack.Encoder().encode
_decode_ranges = msgspec.msgpack.Decoder(Ranges).decode


class JournalSequenceRecord(msgspec.Struct, frozen=True, gc=False):
    incarnation: str
    number: int
    opened_ms: int
    """When the control plane first heard of it."""
    slots: Ranges = ()
    """The slots that are sequenced or fenced."""
    end_slot: int = -1
    """How many slots it has; -1: unknown yet."""

    @property
    def key(self) -> JournalSequenceKey:
        return self.incarnation, self.number

    @property
    def watermark(self) -> int:
        """The lowest slot that is neither sequenced nor fenced."""
        return self.slots[0][1] if self.slots and self.slots[0][0] == 0 else 0

    @property
    def is_complete(self) -> bool:
        """Whether it will never have another file, and all its files are sequenced."""
        if self.watermark >= SLOTS_PER_SEQUENCE_MAX:
            return True
        return 0 <= self.end_slot <= self.watermark

    @property
    def missing_count(self) -> int:
        """How many slots are not sequenced, though later ones are."""
        return (self.slots[-1][1] if self.slots else 0) - intervals.count(self.slots)

    def with_slots(self, slots: Iterable[int]) -> "JournalSequenceRecord":
        added = self.slots
        for start, end in intervals.of_numbers(slots):
            added = intervals.add(added, start, end)
        return self if added == self.slots else msgspec.structs.replace(self, slots=added)

    def with_end(self, end_slot: int) -> "JournalSequenceRecord":
        """Return the record with its end.

        The first end stands: whoever reports one later has seen no more slots.
        """
        return self if self.end_slot >= 0 else msgspec.structs.replace(self, end_slot=end_slot)


class JournalSequences:
    """Keeps the records of all journal sequences.

    Change them only with the state lock held.
    """

    def __init__(self) -> None:
        self.records: dict[JournalSequenceKey, JournalSequenceRecord] = {}
        """The records of the sequences that are not closed."""
        self.closed: dict[str, Ranges] = {}
        """The numbers of closed sequences, by incarnation."""
        self.ended: set[JournalSequenceKey] = set()
        """Sequences whose writers said that they are complete. They need no fences, and are closed without delay. Not
        kept across restarts: others wait until they are old."""
        self._abandoned: dict[JournalSequenceKey, None] = {}

    async def load(self, metadata: MetadataStore) -> None:
        def read(tx: Transaction) -> None:
            for row in tx.query(
                "SELECT incarnation, number, opened_ms, slots, end_slot FROM journal_sequences"
                " ORDER BY opened_ms, incarnation, number"
            ):
                record = JournalSequenceRecord(row[0], row[1], row[2], _decode_ranges(row[3]), row[4])
                self.records[record.key] = record
            for incarnation, closed in tx.query("SELECT incarnation, closed FROM journal_writers ORDER BY incarnation"):
                self.closed[incarnation] = _decode_ranges(closed)

        await metadata.read(read)

    @property
    def is_empty(self) -> bool:
        return not self.records and not self.closed

    def is_closed(self, key: JournalSequenceKey) -> bool:
        return intervals.contains(self.closed.get(key[0], ()), key[1], key[1] + 1)

    def is_sequenced(self, key: JournalSequenceKey, slot: int) -> bool:
        """Whether the file in the slot was sequenced, even if the sequence is closed."""
        if self.is_closed(key):
            return True
        record = self.records.get(key)
        return record is not None and intervals.contains(record.slots, slot, slot + 1)

    def known_below(self) -> dict[str, int]:
        """For each incarnation, a number below which all sequences are known or closed."""
        known = dict(self.closed)
        for incarnation, number in self.records:
            known[incarnation] = intervals.add(known.get(incarnation, ()), number, number + 1)
        return {incarnation: ranges[0][1] for incarnation, ranges in known.items() if ranges and ranges[0][0] == 0}

    def put(self, records: Iterable[JournalSequenceRecord]) -> None:
        for record in records:
            self.records[record.key] = record

    def abandon(self, key: JournalSequenceKey) -> None:
        """Note that the writer of a sequence has left it.

        Not kept across restarts, nor without limit: others are sealed when they are old.
        """
        self._abandoned[key] = None
        if len(self._abandoned) > _ABANDONED_MAX:
            del self._abandoned[next(iter(self._abandoned))]

    def is_abandoned(self, key: JournalSequenceKey) -> bool:
        return key in self._abandoned

    def close(self, key: JournalSequenceKey) -> None:
        """Close a sequence: that is durable already."""
        self.records.pop(key, None)
        self.ended.discard(key)
        self._abandoned.pop(key, None)
        self.closed[key[0]] = self._closed_with(key)

    def _closed_with(self, key: JournalSequenceKey) -> Ranges:
        return intervals.add(self.closed.get(key[0], ()), key[1], key[1] + 1)

    def write_closed(self, tx: Transaction, key: JournalSequenceKey) -> None:
        tx.execute("DELETE FROM journal_sequences WHERE incarnation = ? AND number = ?", key)
        tx.execute(
            "INSERT INTO journal_writers (incarnation, closed) VALUES (?, ?)"
            " ON CONFLICT (incarnation) DO UPDATE SET closed = excluded.closed",
            (key[0], _encode(self._closed_with(key))),
        )


def write_sequences(tx: Transaction, records: Iterable[JournalSequenceRecord]) -> None:
    tx.executemany(
        "INSERT INTO journal_sequences (incarnation, number, slots, end_slot, opened_ms) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (incarnation, number) DO UPDATE SET slots = excluded.slots, end_slot = excluded.end_slot",
        [(each.incarnation, each.number, _encode(each.slots), each.end_slot, each.opened_ms) for each in records],
    )
