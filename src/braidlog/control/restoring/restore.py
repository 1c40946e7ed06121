"""The restore: from its claim to metadata that a control plane can start with.

The order matters. The number is claimed first: that fences whoever still runs with the old metadata, once the leases
are over. Only then is the copy read and the bucket listed, so nothing can be acknowledged behind their backs. The
target gets the number of the restore last: until then no control plane starts on it, and nothing is swept.
"""

import asyncio
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from braidlog.control.foundation import Foundation
from braidlog.control.log.feed import Feed
from braidlog.control.log.recent import RecentExtents
from braidlog.control.metadata.connection import SqliteTransaction, connect
from braidlog.control.metadata.copies import CopyLog
from braidlog.control.metadata.counters import write_counter
from braidlog.control.metadata.shipped import LEASE_S, RESTORE_NUMBER
from braidlog.control.metadata.sqlite import SqliteMetadata
from braidlog.control.metadata.store import BucketParts, MetadataStore
from braidlog.control.parts import Parts
from braidlog.control.restoring.appending import Gap, append_all, begin_epoch, raise_transactional_epochs
from braidlog.control.restoring.findings import Findings, look_through
from braidlog.control.restoring.report import MAY_BE_OLDER, MAY_REAPPEAR, PartitionReport, RestoreReport
from braidlog.control.restoring.sources import (
    RestoreRefused,
    Source,
    load_from_bucket,
    load_from_file,
    load_from_metadata,
)
from braidlog.control.restoring.targets import check_target, write_target
from braidlog.control.settings import ControlSettings
from braidlog.objects.owner import read_owner
from braidlog.objects.store import AlreadyExists, NotFound

_log = structlog.get_logger(__name__)

FENCE_WAIT_S = LEASE_S + 10.0
"""How long to wait after the claim: longer than any lease, with room for a transaction that is under way."""
EPOCHS_SKIPPED = 1_000_000
"""The fencing epoch grows by so much. The lost metadata may have had later epochs than its copy."""


@dataclass(frozen=True, slots=True)
class RestoreOrder:
    """What to restore, and how."""

    target: str
    """The URL of the new metadata."""
    backup: Path | None = None
    """A file to restore from; None: what the bucket has."""
    moved_from: str | None = None
    """Metadata that is there and moves to the target; None: it is lost."""
    is_dry_run: bool = False
    waits: bool = True
    """Whether to wait until a control plane that may still run is fenced."""


async def restore(parts: BucketParts, order: RestoreOrder) -> RestoreReport:
    """Make the metadata again, or move it. Returns the report."""
    copies = CopyLog(parts.store, parts.clock, parts.entropy.fork("restore"))
    newest = await copies.newest_restore()
    if not order.is_dry_run:
        await check_target(order.target, parts, newest)
    with tempfile.TemporaryDirectory(prefix="braidlog-restore-") as folder:
        file = Path(folder) / "metadata.db"
        number = newest + 1
        if order.moved_from is None:
            await _claim(copies, number, order, parts)
            source = await _load(parts, order, file)
        else:
            # The holder is fenced by its own metadata. Its number is claimed once that has worked.
            source = await load_from_metadata(order.moved_from, parts, file)
            await _claim(copies, number, order, parts)
        if source.restore > newest:
            raise RestoreRefused(f"{parts.store.url} lacks restore {source.restore}, which made this metadata")
        return await _Restore(parts, order, source, file, number).run()


async def _claim(copies: CopyLog, number: int, order: RestoreOrder, parts: BucketParts) -> None:
    if order.is_dry_run:
        return
    note = {"target": order.target.partition("://")[0], "by": parts.holder, "claimed_ms": parts.clock.wall_ms()}
    try:
        await copies.claim_restore(number, msgspec.json.encode(note))
    except AlreadyExists:
        raise RestoreRefused(
            f"restore {number} has just begun elsewhere", help="Only one restore may run. Run it again if that fails."
        ) from None
    if order.waits and order.moved_from is None:
        _log.info("waiting until a control plane that still runs is fenced", seconds=FENCE_WAIT_S)
        await parts.clock.sleep(FENCE_WAIT_S)


async def _load(parts: BucketParts, order: RestoreOrder, file: Path) -> Source:
    if order.backup is None:
        return await load_from_bucket(parts, file, take_over=not order.is_dry_run)
    source = await load_from_file(order.backup, file)
    try:
        stored = await load_from_bucket(parts, file.with_name("stored.db"), take_over=False)
    except RestoreRefused:
        return source
    if (stored.restore, stored.position) > (source.restore, source.position):
        raise RestoreRefused(
            f"{order.backup} is older than what {parts.store.url} has itself",
            help="Leave out --from: what was deleted or ended since the backup would come back.",
        )
    return source


class _Restore:
    """One restore, from a SQLite file with the metadata up to the source's end."""

    def __init__(self, parts: BucketParts, order: RestoreOrder, source: Source, file: Path, number: int) -> None:
        self._around = parts
        self._order = order
        self._source = source
        self._file = file
        self._number = number
        self._findings = Findings()
        self._gaps: list[Gap] = []
        self._ends: dict[int, int] = {}
        self._transactional_ids: list[tuple[str, int]] = []

    async def run(self) -> RestoreReport:
        loaded_ms = self._around.clock.wall_ms()
        await asyncio.to_thread(self._skip_epochs)
        metadata = await SqliteMetadata.open(str(self._file))
        try:
            await metadata.acquire_fencing_epoch()
            self._findings = await look_through(self._around.store, metadata)
            if self._findings.missing:
                raise RestoreRefused(
                    f"{len(self._findings.missing)} objects are gone that this metadata refers to, such as "
                    f"{self._findings.missing[0]}",
                    help="It is older than what was deleted since. Restore from a newer copy.",
                )
            if not self._source.is_exact:
                await self._append(metadata)
            await metadata.transact(lambda tx: write_counter(tx, RESTORE_NUMBER, self._number))
        finally:
            await metadata.close()
        if not self._order.is_dry_run:
            await write_target(self._order.target, self._around, self._file)
        return self._report(loaded_ms)

    def _skip_epochs(self) -> None:
        with closing(connect(str(self._file))) as connection:
            SqliteTransaction(connection).execute("UPDATE fencing SET epoch = epoch + ?", (EPOCHS_SKIPPED,))

    async def _append(self, metadata: SqliteMetadata) -> None:
        await RecentExtents(metadata, extents_max=0).recover()
        self._gaps = await metadata.transact(lambda tx: begin_epoch(tx, self._number, self._findings))
        self._transactional_ids = await metadata.peek(
            lambda tx: tx.query("SELECT transactional_id, timeout_ms FROM transactional_ids ORDER BY transactional_id")
        )
        parts = await self._start_parts(metadata)
        try:
            await append_all(parts, self._findings)
            await raise_transactional_epochs(parts, self._transactional_ids)
            self._ends = {each: parts.catalog.partitions[each].next_offset for each in self._gap_ids()}
            await parts.recent.settle()
            await metadata.durable()
        finally:
            await parts.close()

    def _gap_ids(self) -> list[int]:
        return [gap.partition_id for gap in self._gaps]

    async def _start_parts(self, metadata: MetadataStore) -> Parts:
        around = self._around
        settings = ControlSettings(holder=around.holder)
        feed = Feed(
            metadata.fencing_epoch,
            metadata,
            events_max=settings.feed_events_max,
            ring_bytes_max=settings.feed_bytes_max,
        )
        foundation = Foundation(metadata, asyncio.Lock(), feed, around.clock)
        parts = Parts(
            foundation, around.store, around.entropy.fork("parts"), settings, await self._cluster_id(metadata)
        )
        await parts.load()
        return parts

    async def _cluster_id(self, metadata: MetadataStore) -> str:
        rows = await metadata.peek(lambda tx: tx.query("SELECT value FROM facts WHERE name = 'cluster_id'"))
        known = str(rows[0][0]) if rows else ""
        try:
            owner = await read_owner(self._around.store)
        except NotFound:
            return known
        if owner != known:
            raise RestoreRefused(
                f"{self._around.store.url} belongs to cluster {owner}, but this metadata to {known}",
                help="Is it the right store, and the right backup?",
            )
        return known

    def _report(self, loaded_ms: int) -> RestoreReport:
        found, source = self._findings, self._source
        partitions = [
            PartitionReport(
                topic=gap.topic,
                partition=gap.index,
                kept_end_offset=gap.start_offset,
                gap_end_offset=gap.end_offset,
                end_offset=self._ends.get(gap.partition_id, gap.end_offset),
                appended_records=self._ends.get(gap.partition_id, gap.end_offset) - gap.end_offset,
                aborted_records=found.transactional[gap.topic_id, gap.index],
            )
            for gap in self._gaps
        ]
        return RestoreReport(
            restore=self._number,
            source=source.kind,
            is_exact=source.is_exact,
            position=source.position,
            copy_age_s=max(0, loaded_ms - source.written_ms) / 1000 if source.written_ms else -1.0,
            target=self._order.target.partition("://")[0],
            is_dry_run=self._order.is_dry_run,
            objects_appended=0 if source.is_exact else len(found.requests),
            journal_files_to_replay=found.journal_file_count,
            objects_rewritten=found.rewritten_count,
            objects_stale=found.stale_count,
            transactional_ids=len(self._transactional_ids),
            unreadable=sorted(found.unreadable),
            partitions=partitions,
            damage=source.damage,
            may_be_older=[] if source.is_exact else list(MAY_BE_OLDER),
            may_reappear=[] if source.is_exact else list(MAY_REAPPEAR),
        )


async def verify(parts: BucketParts) -> RestoreReport:
    """Check that the bucket can give the metadata back, and change nothing."""
    return await restore(parts, RestoreOrder("sqlite://", is_dry_run=True))


async def back_up(parts: BucketParts, file: Path) -> Source:
    """Write the newest metadata that the bucket has to a file, as a backup."""
    target = f"sqlite://{await asyncio.to_thread(file.resolve)}"
    await check_target(target, parts, 0)
    with tempfile.TemporaryDirectory(prefix="braidlog-backup-") as folder:
        loaded = Path(folder) / "metadata.db"
        source = await load_from_bucket(parts, loaded, take_over=False)
        await write_target(target, parts, loaded)
    return source
