"""What the bucket holds that a copy of the metadata does not know of."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from braidlog.control.interface import CommitObject
from braidlog.control.metadata.counters import read_counter
from braidlog.control.metadata.store import MetadataStore, Transaction
from braidlog.objects.format import CorruptObject, StoredFooter, read_stored_footer
from braidlog.objects.keys import DATA_PREFIX, JOURNAL_PREFIX, InvalidKey, parse_data_key
from braidlog.objects.layout import NEW_RECORDS, Footer
from braidlog.objects.store import NotFound, Store
from braidlog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT

READS_AT_ONCE = 32
_FLOOR = "write_epoch_floor"
_NEVER_APPENDED = CONTROL_BIT | TRANSACTIONAL_BIT


@dataclass(slots=True)
class Findings:
    requests: list[CommitObject] = field(default_factory=list)
    """Objects of new records that the copy does not know, in the order in which to append them."""
    told_max: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    """How many offsets may have been told behind the copy's end.

    By topic id and partition.
    """
    transactional: Counter[tuple[bytes, int]] = field(default_factory=Counter)
    """Records of transactions that had not ended. They count as aborted."""
    journal_file_count: int = 0
    """Files of journals that the copy does not know. They are replayed later, as always."""
    rewritten_count: int = 0
    """Merged and compacted objects: all their records are elsewhere, too."""
    stale_count: int = 0
    """Objects below the floor of write epochs: nobody was told that they are written."""
    unreadable: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Objects that the copy refers to, and that are gone."""
    write_epoch_max: int = 0


async def look_through(store: Store, metadata: MetadataStore) -> Findings:
    """List the bucket and read the footers of all objects that the metadata lacks."""
    known, live, floor, held = await metadata.peek(_read_known)
    findings = Findings(told_max=held)
    data_keys = await _list(store, DATA_PREFIX)
    journal_keys = await _list(store, JOURNAL_PREFIX)
    findings.missing = sorted(live - set(data_keys) - set(journal_keys))
    new: list[tuple[tuple[int, int, str, int], CommitObject]] = []
    for key, stored in await _read_footers(store, [key for key in data_keys if key not in known], findings):
        try:
            name = parse_data_key(key)
        except InvalidKey:
            continue  # not ours
        epoch = name.write_epoch
        findings.write_epoch_max = max(findings.write_epoch_max, epoch)
        footer = stored.footer
        if footer.kind != NEW_RECORDS:
            findings.rewritten_count += 1
        elif epoch < floor:
            findings.stale_count += 1
        else:
            _count(findings, footer)
            request = CommitObject(key, stored.object_size, stored.footer_bytes)
            new.append(((footer.created_ms, epoch, name.incarnation, name.number), request))
    findings.requests = [request for _, request in sorted(new, key=lambda each: each[0])]
    for _, stored in await _read_footers(store, [key for key in journal_keys if key not in known], findings):
        if stored.footer.extents:
            findings.journal_file_count += 1
            _count(findings, stored.footer)
    return findings


def _count(findings: Findings, footer: Footer) -> None:
    for extent in footer.extents:
        place = extent.topic_id, extent.partition
        findings.told_max[place] += extent.record_count
        ended = sum(batch.offset_count for batch in extent.batches if batch.attributes & _NEVER_APPENDED)
        if ended:
            findings.transactional[place] += ended


def _read_known(tx: Transaction) -> tuple[set[str], set[str], int, Counter[tuple[bytes, int]]]:
    known: set[str] = set()
    live: set[str] = set()
    for key, live_count in tx.query("SELECT object_key, live_count FROM objects WHERE deleted_ms IS NULL"):
        known.add(key)
        if live_count:
            live.add(key)
    held: Counter[tuple[bytes, int]] = Counter()
    for topic_id, index, count in tx.query(
        "SELECT p.topic_id, p.partition_index, h.offset_count FROM held_batches h"
        " JOIN partitions p ON p.partition_id = h.partition_id"
    ):
        held[bytes(topic_id), index] += count
    return known, live, read_counter(tx, _FLOOR), held


async def _list(store: Store, prefix: str) -> list[str]:
    keys: list[str] = []
    after: str | None = None
    while True:
        page = await store.list(prefix, after=after)
        keys += [meta.key for meta in page.objects]
        after = page.next_after
        if after is None:
            return keys


async def _read_footers(store: Store, keys: list[str], findings: Findings) -> list[tuple[str, StoredFooter]]:
    async def read(key: str) -> StoredFooter | None:
        try:
            return await read_stored_footer(store, key)
        except NotFound:
            return None  # swept meanwhile, so nothing refers to it
        except CorruptObject:
            findings.unreadable.append(key)
            return None

    found: list[tuple[str, StoredFooter]] = []
    for start in range(0, len(keys), READS_AT_ONCE):
        some = keys[start : start + READS_AT_ONCE]
        footers = await asyncio.gather(*map(read, some))
        found += [(key, footer) for key, footer in zip(some, footers, strict=True) if footer is not None]
    return found
