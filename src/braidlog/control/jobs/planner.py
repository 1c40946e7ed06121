"""Finds extents to merge and partitions to compact, and plans jobs for them.

The jobs go on the board.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from braidlog.compaction.due import DueReason, DueSettings, cleanable_end_offset, is_due, partition_facts
from braidlog.configs.topic import TopicSettings
from braidlog.control.catalog import Catalog
from braidlog.control.foundation import Foundation
from braidlog.control.interface import (
    COMPACT,
    MERGE,
    AbortedRange,
    CompactionRequested,
    CompactionTerms,
    IndexedExtent,
    JobPartition,
    JobTask,
    RequestCompaction,
    StoredObject,
)
from braidlog.control.jobs.board import JobBoard
from braidlog.control.jobs.merge_runs import merge_runs
from braidlog.control.jobs.settings import JobSettings
from braidlog.control.log.recent import RecentExtents
from braidlog.control.metadata.store import Transaction
from braidlog.control.partitions import PartitionState, TopicState

PARTITIONS_PER_JOB_MAX = 1_000
CANDIDATES_PER_PLAN_MAX = 10_000
EXTENTS_PER_ADD = 20_000
"""Compactions go on the board when they have so many extents together, because each names all of its own."""
_COMPACTED_EXTENTS_MAX = 20_000
"""A partition with more extents is merged first, because a compaction job names every extent."""


@dataclass(frozen=True, slots=True)
class _Found:
    """An extent of the index, with its object.

    Records without a timestamp are as old as the object's commit.
    """

    extent: IndexedExtent
    object: StoredObject | None
    """None: the bytes are in the index itself."""
    committed_ms: int

    @property
    def base_offset(self) -> int:
        return self.extent.base_offset

    @property
    def end_offset(self) -> int:
        return self.extent.end_offset

    @property
    def length(self) -> int:
        return self.extent.length

    @property
    def timestamp_ms_min(self) -> int:
        return self.extent.timestamp_ms_min if self.extent.timestamp_ms_min >= 0 else self.committed_ms

    @property
    def timestamp_ms_max(self) -> int:
        return self.extent.timestamp_ms_max if self.extent.timestamp_ms_max >= 0 else self.committed_ms


@dataclass(frozen=True, slots=True)
class _Compacted:
    """How far earlier compactions have come."""

    clean_end_offset: int = 0
    compacted_ms: int = 0
    due_ms: int | None = None


class JobPlanner:
    def __init__(
        self, foundation: Foundation, catalog: Catalog, recent: RecentExtents, board: JobBoard, settings: JobSettings
    ) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._catalog = catalog
        self._recent = recent
        self._board = board
        self._clock = foundation.clock
        self._settings = settings

    async def plan_once(self) -> list[int]:
        """Plan all work that is due. Returns the ids of the new jobs."""
        await self._recent.settle_in_steps(self._state_lock)
        planned = await self.plan_compactions(self._catalog.topics.values(), is_forced=False)
        return planned + await self._add(await self._merges())

    async def request_compaction(self, request: RequestCompaction) -> CompactionRequested:
        topic = next((each for each in self._catalog.topics.values() if each.info.name == request.topic), None)
        if topic is None:
            message = f"there is no topic {request.topic!r}"
            return CompactionRequested(int(ErrorCode.unknown_topic_or_partition), [], message)
        if not self._catalog.settings(topic).compacted:
            message = f"cleanup.policy of {request.topic!r} does not compact"
            return CompactionRequested(int(ErrorCode.policy_violation), [], message)
        async with self._state_lock:
            await self._recent.settle([state.partition_id for state in topic.partitions])
        planned = await self.plan_compactions([topic], is_forced=True)
        busy = self._board.busy_partitions
        in_jobs = [busy[state.partition_id] for state in topic.partitions if state.partition_id in busy]
        compactions = self._board.of_kind(COMPACT, in_jobs)
        return CompactionRequested(0, sorted({*planned, *compactions}), "", len(in_jobs) - len(compactions))

    # ── compaction ────────────────────────────────────────────────────────────────────────────────────────────────

    async def plan_compactions(self, topics: Iterable[TopicState], *, is_forced: bool) -> list[int]:
        job_ids: list[int] = []
        # Added many at a time, so that a worker finds them together and makes one round of them.
        planned: list[tuple[JobTask, str]] = []
        extent_count = 0
        for topic in list(topics):
            settings = self._catalog.settings(topic)
            if not settings.compacted:
                continue
            for state in list(topic.partitions):
                if not state.size_bytes or not self._board.may_plan(state.partition_id):
                    continue
                # If the index changes before the swap, the swap fails. So the state lock is not needed here.
                task = await self._compaction(state, settings, is_forced=is_forced)
                if task is None:
                    continue
                planned.append((task, f"{topic.info.name}/{state.index}"))
                extent_count += len(task.partitions[0].extents)
                if extent_count >= EXTENTS_PER_ADD:
                    job_ids += await self._add(planned)
                    planned, extent_count = [], 0
        return job_ids + await self._add(planned)

    async def _add(self, planned: list[tuple[JobTask, str]]) -> list[int]:
        async with self._state_lock:
            return await self._board.add(planned)

    async def _compaction(self, state: PartitionState, settings: TopicSettings, *, is_forced: bool) -> JobTask | None:
        now_ms = self._clock.wall_ms()
        end_offset = state.first_unstable_offset if state.first_unstable_offset >= 0 else state.next_offset
        log_start_offset = state.log_start_offset

        def search(tx: Transaction) -> tuple[_Compacted, list[_Found], int, list[AbortedRange]]:
            known = _read_compacted(tx, state.partition_id)
            found = _read_extents(tx, state.partition_id, log_start_offset, end_offset, _COMPACTED_EXTENTS_MAX + 1)
            aborted = tx.query(
                "SELECT partition_id, producer_id, first_offset, marker_offset FROM aborted_transactions"
                " WHERE partition_id = ? AND marker_offset >= ? AND first_offset < ? ORDER BY marker_offset",
                (state.partition_id, log_start_offset, end_offset),
            )
            return known, found, _read_generation(tx, state.partition_id), [AbortedRange(*row) for row in aborted]

        if not is_forced and not await self._is_worth_a_look(state, end_offset, now_ms):
            return None
        known, found, generation, aborted = await self._metadata.read(search)
        due = DueSettings(
            settings.min_cleanable_dirty_ratio, settings.min_compaction_lag_ms, settings.max_compaction_lag_ms
        )
        cleanable_end = cleanable_end_offset(found, stable_offset=end_offset, settings=due, now_ms=now_ms)
        found = [each for each in found if each.end_offset <= cleanable_end]
        if not found or len(found) > _COMPACTED_EXTENTS_MAX:
            return None
        if not self._is_due(known, found, due, now_ms, is_forced=is_forced):
            return None
        extents = [each.extent for each in found]
        terms = CompactionTerms(
            clean_end_offset=known.clean_end_offset,
            log_start_offset=log_start_offset,
            # There is one replica of each log, so what it has compacted is compacted everywhere.
            tombstones_end_offset=known.clean_end_offset,
            delete_retention_ms=settings.delete_retention_ms,
            now_ms=now_ms,
            aborted=aborted,
        )
        return JobTask(
            COMPACT,
            [JobPartition(state.partition_id, state.topic_id, state.index, generation, extents)],
            _objects(found),
            self._settings.merge_target_bytes,
            terms,
        )

    async def _is_worth_a_look(self, state: PartitionState, end_offset: int, now_ms: int) -> bool:
        """Whether a partition may be dirty or have due tombstones.

        Reads two rows, and not all extents.
        """

        def look(tx: Transaction) -> bool:
            known = _read_compacted(tx, state.partition_id)
            if known.due_ms is not None and known.due_ms <= now_ms:
                return True
            return end_offset > known.clean_end_offset

        return await self._metadata.read(look)

    def _is_due(
        self, known: _Compacted, found: Sequence[_Found], due: DueSettings, now_ms: int, *, is_forced: bool
    ) -> bool:
        facts = partition_facts(
            found,
            clean_end_offset=known.clean_end_offset,
            cleanable_end_offset=found[-1].end_offset,
            tombstones_due_ms=known.due_ms,
        )
        reason = is_due(facts, due, now_ms)
        if is_forced:
            return facts.dirty_bytes > 0 or reason is not None
        if reason is not DueReason.DIRTY_RATIO:
            return reason is not None
        # Otherwise many small changes would rewrite a small partition all the time.
        dirty_since_ms = min(each.committed_ms for each in found if each.end_offset > known.clean_end_offset)
        waited_ms = now_ms - max(known.compacted_ms, dirty_since_ms)
        is_enough = facts.dirty_bytes >= self._settings.compaction_bytes_min
        return is_enough or waited_ms >= self._settings.compaction_interval_s * 1000

    # ── merging ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _merges(self) -> list[tuple[JobTask, str]]:
        """Return merge jobs for all partitions, each of a bounded size."""
        settings = self._settings
        before_ms = self._clock.wall_ms() - int(settings.merge_age_s * 1000)
        small_bytes = settings.merge_target_bytes // 2
        candidates = await self._metadata.read(
            lambda tx: tx.query(
                "SELECT partition_id FROM extents WHERE length <= ? GROUP BY partition_id HAVING COUNT(*) >= 2"
                " ORDER BY COUNT(*) DESC, partition_id LIMIT ?",
                (small_bytes, CANDIDATES_PER_PLAN_MAX),
            )
        )
        packing = _Packing(settings)
        for (partition_id,) in candidates:
            state = self._catalog.partitions.get(partition_id)
            if state is None or not self._board.may_plan(partition_id) or packing.job_count >= self._board.room:
                continue
            end_offset = state.next_offset
            found, generation, known = await self._metadata.read(
                lambda tx, state=state, end=end_offset: (  # type: ignore[misc]  # bound now, not at the call
                    _read_old_extents(tx, state, end, before_ms, settings.extents_per_job_max),
                    _read_generation(tx, state.partition_id),
                    _read_compacted(tx, state.partition_id),
                )
            )
            topic = self._catalog.topics.get(state.topic_id)
            if topic is None:
                continue  # deleted meanwhile
            name = topic.info.name
            runs = list(_runs(found, settings, known.clean_end_offset))
            if runs:
                packing.add(state, generation, runs, f"{name}/{state.index}")
        return packing.finish()


class _Packing:
    """Packs the runs of several partitions into jobs.

    A partition is in one job, and so has one swap.
    """

    def __init__(self, settings: JobSettings) -> None:
        self._settings = settings
        self._jobs: list[tuple[JobTask, str]] = []
        self._partitions: list[tuple[JobPartition, list[StoredObject], str]] = []
        self._size_bytes = 0
        self._extent_count = 0

    @property
    def job_count(self) -> int:
        return len(self._jobs) + bool(self._partitions)

    def add(self, state: PartitionState, generation: int, runs: list[list[_Found]], name: str) -> None:
        """Add a partition, with as many of its runs as a job may have."""
        chosen, size_bytes = self._first(runs)
        found = [each for run in chosen for each in run]
        if self._partitions and (
            self._size_bytes + size_bytes > self._settings.bytes_per_job_max
            or self._extent_count + len(found) > self._settings.extents_per_job_max
            or len(self._partitions) >= PARTITIONS_PER_JOB_MAX
        ):
            self._close()
        partition = JobPartition(
            state.partition_id,
            state.topic_id,
            state.index,
            generation,
            [each.extent for each in found],
            [run[0].base_offset for run in chosen],
        )
        self._partitions.append((partition, _objects(found), name))
        self._size_bytes += size_bytes
        self._extent_count += len(found)

    def _first(self, runs: list[list[_Found]]) -> tuple[list[list[_Found]], int]:
        """Return the first runs that fit into a job, at least one, and their bytes."""
        chosen: list[list[_Found]] = []
        size_bytes = extent_count = 0
        for run in runs:
            run_bytes = sum(each.length for each in run)
            is_over = size_bytes + run_bytes > self._settings.bytes_per_partition_max
            if chosen and (is_over or extent_count + len(run) > self._settings.extents_per_job_max):
                break
            chosen.append(run)
            size_bytes += run_bytes
            extent_count += len(run)
        return chosen, size_bytes

    def _close(self) -> None:
        objects = {stored.number: stored for _, some, _ in self._partitions for stored in some}
        names = [name for _, _, name in self._partitions]
        subject = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        task = JobTask(
            MERGE,
            [partition for partition, _, _ in self._partitions],
            list(objects.values()),
            self._settings.merge_target_bytes,
        )
        self._jobs.append((task, subject))
        self._partitions, self._size_bytes, self._extent_count = [], 0, 0

    def finish(self) -> list[tuple[JobTask, str]]:
        if self._partitions:
            self._close()
        return self._jobs


def _runs(found: list[_Found], settings: JobSettings, border_offset: int) -> Iterator[list[_Found]]:
    """Return the runs to merge.

    None crosses the border between compacted and dirty extents.
    """
    border = sum(each.extent.base_offset < border_offset for each in found)
    for part in (found[:border], found[border:]):
        lengths = [each.extent.length for each in part]
        runs = merge_runs(lengths, target_bytes=settings.merge_target_bytes, fan_in=settings.merge_fan_in)
        for start, end in runs:
            yield part[start:end]


def _objects(found: Iterable[_Found]) -> list[StoredObject]:
    return list({each.object.number: each.object for each in found if each.object is not None}.values())


def _read_generation(tx: Transaction, partition_id: int) -> int:
    rows = tx.query("SELECT index_generation FROM partitions WHERE partition_id = ?", (partition_id,))
    return int(rows[0][0]) if rows else -1


def _read_compacted(tx: Transaction, partition_id: int) -> _Compacted:
    rows = tx.query(
        "SELECT clean_end_offset, compacted_ms, due_ms FROM partition_compactions WHERE partition_id = ?",
        (partition_id,),
    )
    return _Compacted(*rows[0]) if rows else _Compacted()


def _read_old_extents(tx: Transaction, state: PartitionState, end: int, before_ms: int, limit: int) -> list[_Found]:
    """Read the extents of a partition up to the first that is too young to merge.

    A merge takes neighbours only, so no young one may be skipped. The first young extent is looked up beforehand: where
    much is written nearly all extents are young, and need not be read.
    """
    young = tx.query(
        "SELECT e.base_offset FROM extents e LEFT JOIN objects o ON o.number = e.object_number WHERE e.partition_id = ?"
        " AND e.end_offset > ? AND e.end_offset <= ? AND COALESCE(o.committed_ms, e.timestamp_ms_max) > ?"
        " ORDER BY e.base_offset LIMIT 1",
        (state.partition_id, state.log_start_offset, end, before_ms),
    )
    old_end = int(young[0][0]) if young else end
    return _read_extents(tx, state.partition_id, state.log_start_offset, old_end, limit)


def _read_extents(tx: Transaction, partition_id: int, start: int, end: int, limit: int) -> list[_Found]:
    """Read a partition's extents that end after `start` and not after `end`.

    They come in order.
    """
    rows = tx.query(
        "SELECT e.partition_id, e.base_offset, e.end_offset, e.object_number, e.position, e.length,"
        " e.timestamp_ms_min, e.timestamp_ms_max, e.inline_bytes, o.object_key, o.size_bytes, o.committed_ms"
        " FROM extents e LEFT JOIN objects o ON o.number = e.object_number WHERE e.partition_id = ?"
        " AND e.end_offset > ? AND e.end_offset <= ? ORDER BY e.base_offset LIMIT ?",
        (partition_id, start, end, limit),
    )
    found: list[_Found] = []
    for row in rows:
        stored = StoredObject(row[3], row[9], row[10]) if row[9] is not None else None
        committed_ms = row[11] if row[11] is not None else row[7]
        found.append(_Found(IndexedExtent(*row[:9]), stored, committed_ms))
    return found
