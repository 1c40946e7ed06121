"""What of each journal is sequenced, so that no file is sequenced twice, however late it is brought."""

from collections.abc import Iterable

import msgspec

from braidlog.control import intervals
from braidlog.control.intervals import Ranges
from braidlog.control.metadata import MetadataStore, Transaction
from braidlog.objects.keys import SLOTS_PER_SEQUENCE_MAX

SequenceKey = tuple[str, int]
"""Incarnation and number."""

_encode = msgspec.msgpack.Encoder().encode
_decode_ranges = msgspec.msgpack.Decoder(Ranges).decode


class SequenceRecord(msgspec.Struct, frozen=True, gc=False):
    incarnation: str
    number: int
    opened_ms: int
    """When it was first heard of."""
    slots: Ranges = ()
    """Sequenced or fenced."""
    end_slot: int = -1
    """How many slots it has; -1: nobody knows yet."""

    @property
    def key(self) -> SequenceKey:
        return self.incarnation, self.number

    @property
    def watermark(self) -> int:
        """All slots below are sequenced or fenced."""
        return self.slots[0][1] if self.slots and self.slots[0][0] == 0 else 0

    @property
    def is_complete(self) -> bool:
        """Whether it will never have another file, and all that it has are sequenced."""
        if self.watermark >= SLOTS_PER_SEQUENCE_MAX:
            return True
        return 0 <= self.end_slot <= self.watermark

    @property
    def missing_count(self) -> int:
        """Slots that are not sequenced, though later ones are."""
        return (self.slots[-1][1] if self.slots else 0) - intervals.count(self.slots)

    def with_slots(self, slots: Iterable[int]) -> "SequenceRecord":
        added = self.slots
        for start, end in intervals.of_numbers(slots):
            added = intervals.add(added, start, end)
        return self if added == self.slots else msgspec.structs.replace(self, slots=added)

    def with_end(self, end_slot: int) -> "SequenceRecord":
        """The end is said once and for all: whoever says it later has seen no more."""
        return self if self.end_slot >= 0 else msgspec.structs.replace(self, end_slot=end_slot)


class Sequences:
    """Called by who holds the turn, but for what only reads."""

    def __init__(self) -> None:
        self.records: dict[SequenceKey, SequenceRecord] = {}
        """Of all that are not closed."""
        self.closed: dict[str, Ranges] = {}
        """Numbers of those that are, by incarnation."""

    async def load(self, metadata: MetadataStore) -> None:
        def read(tx: Transaction) -> None:
            for row in tx.query(
                "SELECT incarnation, number, opened_ms, slots, end_slot FROM journal_sequences"
                " ORDER BY opened_ms, incarnation, number"
            ):
                record = SequenceRecord(row[0], row[1], row[2], _decode_ranges(row[3]), row[4])
                self.records[record.key] = record
            for incarnation, closed in tx.query("SELECT incarnation, closed FROM journal_writers ORDER BY incarnation"):
                self.closed[incarnation] = _decode_ranges(closed)

        await metadata.read(read)

    @property
    def is_empty(self) -> bool:
        return not self.records and not self.closed

    def is_closed(self, key: SequenceKey) -> bool:
        return intervals.contains(self.closed.get(key[0], ()), key[1], key[1] + 1)

    def is_sequenced(self, key: SequenceKey, slot: int) -> bool:
        """Whether the file in the slot was sequenced: also where nothing else is left of it."""
        if self.is_closed(key):
            return True
        record = self.records.get(key)
        return record is not None and intervals.contains(record.slots, slot, slot + 1)

    def known_below(self) -> dict[str, int]:
        """By incarnation: of the sequences below this number all are known, or closed."""
        known = dict(self.closed)
        for incarnation, number in self.records:
            known[incarnation] = intervals.add(known.get(incarnation, ()), number, number + 1)
        return {incarnation: ranges[0][1] for incarnation, ranges in known.items() if ranges and ranges[0][0] == 0}

    def put(self, records: Iterable[SequenceRecord]) -> None:
        for record in records:
            self.records[record.key] = record

    def close(self, key: SequenceKey) -> None:
        """It is durable that the sequence is no more."""
        self.records.pop(key, None)
        self.closed[key[0]] = self._closed_with(key)

    def _closed_with(self, key: SequenceKey) -> Ranges:
        return intervals.add(self.closed.get(key[0], ()), key[1], key[1] + 1)

    def write_closed(self, tx: Transaction, key: SequenceKey) -> None:
        tx.execute("DELETE FROM journal_sequences WHERE incarnation = ? AND number = ?", key)
        tx.execute(
            "INSERT INTO journal_writers (incarnation, closed) VALUES (?, ?)"
            " ON CONFLICT (incarnation) DO UPDATE SET closed = excluded.closed",
            (key[0], _encode(self._closed_with(key))),
        )


def write_sequences(tx: Transaction, records: Iterable[SequenceRecord]) -> None:
    tx.executemany(
        "INSERT INTO journal_sequences (incarnation, number, slots, end_slot, opened_ms) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (incarnation, number) DO UPDATE SET slots = excluded.slots, end_slot = excluded.end_slot",
        [(each.incarnation, each.number, _encode(each.slots), each.end_slot, each.opened_ms) for each in records],
    )
