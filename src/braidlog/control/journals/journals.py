"""Finds journals, has them replayed, and decides how long batches wait.

A batch waits for earlier ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from braidlog.control import intervals
from braidlog.control.agents import AgentRegistry
from braidlog.control.catalog import Catalog
from braidlog.control.foundation import Foundation
from braidlog.control.interface import (
    ABANDONED,
    REPLAY,
    SCAN,
    WAITS_FOR_BATCH,
    WAITS_FOR_JOURNALS,
    CompleteJob,
    DescribeJournals,
    EndSequence,
    JobTask,
    JournalDescription,
    JournalStatistics,
    ReplayDone,
    ReplayTask,
    RequestScan,
    ScanDone,
    ScanRequested,
    ScanTask,
    SequenceDescription,
)
from braidlog.control.jobs.board import JobBoard
from braidlog.control.jobs.results import Finish
from braidlog.control.jobs.swap import INVALID, SwapRefused
from braidlog.control.journals.held_batches import HeldBatch
from braidlog.control.journals.sequences import JournalSequenceKey, JournalSequenceRecord, write_sequences
from braidlog.control.journals.settings import JournalSettings
from braidlog.control.journals.state import JournalState
from braidlog.control.log.sequencer import Sequencer
from braidlog.control.metadata.counters import NumberBlocks
from braidlog.control.metadata.store import Transaction
from braidlog.objects.keys import SLOTS_PER_SEQUENCE_MAX

REPLAYS_AT_ONCE_MAX = 32
GIVEN_UP_AT_ONCE_MAX = 5_000
STALLED_WAITS = 2
"""How many more gap times a batch waits for unread journals once scans and replays make no progress."""
LIGHTNING = "lightning"

_AGENTS_JOURNAL = "agents_may_journal"
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Recorded:
    """The finished job's changes to the records of journal sequences."""

    journals: "Journals"
    records: list[JournalSequenceRecord]

    def write(self, tx: Transaction) -> None:
        write_sequences(tx, self.records)

    async def apply(self) -> None:
        self.journals.sequences.put(self.records)


@dataclass(slots=True)
class _Scanned(_Recorded):
    scan: int

    async def apply(self) -> None:
        await _Recorded.apply(self)
        await self.journals.scan_ended(self.scan)


@dataclass(slots=True)
class _Replayed(_Recorded):
    key: JournalSequenceKey

    async def apply(self) -> None:
        await _Recorded.apply(self)
        await self.journals.replay_ended(self.key)


class Journals:
    def __init__(
        self,
        foundation: Foundation,
        catalog: Catalog,
        agents: AgentRegistry,
        board: JobBoard,
        sequencer: Sequencer,
        state: JournalState,
        settings: JournalSettings,
        *,
        wait_s_max: float,
    ) -> None:
        """`wait_s_max` limits every wait.

        After it, the state of the batch's producer could be forgotten.
        """
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._catalog = catalog
        self._agents = agents
        self._board = board
        self._sequencer = sequencer
        self.sequences = state.sequences
        self._held = state.held
        self.backlog = state.backlog
        self._needs = state.backlog.needs
        self._clock = foundation.clock
        self._settings = settings
        self._wait_s_max = min(settings.gap_s_max, wait_s_max)
        self._wait_s = min(settings.gap_s, wait_s_max)
        self._scan_numbers = NumberBlocks(foundation.metadata, "journal_scan", 1_000)
        self._scan_job: tuple[int, int] | None = None
        """The job's id, and the number of the scan."""
        self._replay_jobs: dict[JournalSequenceKey, tuple[int, int]] = {}
        """The job's id of each journal sequence, and the newest scan that had ended when the job was planned."""
        self._progress_seen = (0, 0, 0)
        self._progress_ms = foundation.clock.wall_ms()
        """When scans or replays last made progress."""

    async def load(self) -> None:
        await self.sequences.load(self._metadata)
        await self._held.load(self._metadata)
        rows = await self._metadata.read(
            lambda tx: tx.query("SELECT value FROM facts WHERE name = ?", (_AGENTS_JOURNAL,))
        )
        self.backlog.agents_journal = bool(rows)
        # Jobs from before the start cannot be matched to a scan, and their workers may have died: their work must not
        # wait for the leases to end. Replays may race each other.
        async with self._state_lock:
            await self._board.discard([SCAN, REPLAY])
        self._look()
        if self.backlog.agents_journal:
            self.backlog.wanted_scan = 1

    # ── what others ask ───────────────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """Expect journals once there is a reason to."""
        if self.backlog.agents_journal or not self.sequences.is_empty or bool(self._catalog.topics_of_type(LIGHTNING)):
            self.backlog.expect()

    async def agent_journals(self) -> None:
        """Note that agents may write journals while the control plane is away."""
        if self.backlog.agents_journal:
            return
        async with self._state_lock:
            await self._metadata.plan(
                lambda tx: tx.execute(
                    "INSERT INTO facts (name, value) VALUES (?, '1') ON CONFLICT (name) DO NOTHING", (_AGENTS_JOURNAL,)
                )
            )
            self.backlog.agents_journal = True
            self.backlog.expect()

    async def request_scan(self, request: RequestScan) -> ScanRequested:
        scan = self.backlog.want_scan()
        _log.info("an agent asked for a scan of the journals", incarnation=request.incarnation, scan=scan)
        await self.plan_once()
        return ScanRequested(scan)

    async def end_sequence(self, request: EndSequence) -> None:
        if not ABANDONED <= request.slot_count <= SLOTS_PER_SEQUENCE_MAX:
            return
        key = request.incarnation, request.number
        async with self._state_lock:
            if self.sequences.is_closed(key):
                return
            if request.slot_count == ABANDONED:
                self.sequences.abandon(key)
                return
            record = self._record(key).with_end(request.slot_count)
            await self._metadata.plan(lambda tx: write_sequences(tx, [record]))
            self.sequences.put([record])
            self.sequences.ended.add(key)

    def _record(self, key: JournalSequenceKey) -> JournalSequenceRecord:
        return self.sequences.records.get(key) or JournalSequenceRecord(*key, self._clock.wall_ms())

    # ── scans and replays ─────────────────────────────────────────────────────────────────────────────────────────

    async def plan_once(self) -> None:
        """Plan a scan unless one is open, and the replays that are needed."""
        async with self._state_lock:
            self._look()
            if self.backlog.may_exist and (self._scan_job is None or not self._board.is_open(self._scan_job[0])):
                await self._plan_scan()
            await self._plan_replays()

    async def _plan_scan(self) -> None:
        await self._scan_numbers.reserve(1)
        scan = self._scan_numbers.take()
        task = JobTask(SCAN, [], [], 0, scan=ScanTask(self.sequences.known_below()))
        self.backlog.newest_scan = scan
        self._needs.scan_asked(scan, self._clock.wall_ms())
        for job_id in await self._board.add([(task, "journals")]):
            self._scan_job = job_id, scan

    async def _plan_replays(self) -> None:
        records = self.sequences.records
        needed: list[JournalSequenceRecord] = []
        for key in self._needs.needed:
            record = records.get(key)
            if record is None or record.is_complete:
                self._needs.sequence_complete(key)
            else:
                needed.append(record)
        self._replay_jobs = {key: job for key, job in self._replay_jobs.items() if self._board.is_open(job[0])}
        # Sequences that cannot be replayed must not keep others from their turn, however many there are.
        needed.sort(key=lambda record: (self._needs.tried_scan(record.key), record.opened_ms, record.key))
        room = REPLAYS_AT_ONCE_MAX - len(self._replay_jobs)
        live = {agent.incarnation for agent in self._agents.agents}
        for record in [each for each in needed if each.key not in self._replay_jobs][: max(0, room)]:
            task = JobTask(REPLAY, [], [], 0, replay=self._replay_task(record, record.incarnation in live))
            for job_id in await self._board.add([(task, f"journal {record.incarnation}/{record.number}")]):
                self._replay_jobs[record.key] = job_id, self._needs.newest_ended_scan

    def _replay_task(self, record: JournalSequenceRecord, is_live: bool) -> ReplayTask:
        watermark = record.watermark
        known = [each for each in record.slots if each[0] >= watermark]
        is_written = is_live and not self.sequences.is_abandoned(record.key)
        seal = should_seal(record, is_written, self._clock.wall_ms(), self._settings.sequence_age_s)
        return ReplayTask(record.incarnation, record.number, watermark, known, seal)

    def finish(self, task: JobTask, request: CompleteJob) -> Finish:
        """Return the change that a finished scan or replay makes, for the job board."""
        if task.kind == SCAN and request.scan is not None:
            scan = self._scan_job[1] if self._scan_job is not None and self._scan_job[0] == request.job_id else 0
            return _Scanned(self, self._found(request.scan), scan)
        if task.kind == REPLAY and task.replay is not None and request.replay is not None:
            return self._replayed(task.replay, request.replay)
        raise SwapRefused(INVALID, f"the result is not that of a {task.kind}")

    def _found(self, done: ScanDone) -> list[JournalSequenceRecord]:
        unknown = dict.fromkeys((each.incarnation, each.number) for each in done.sequences)
        return [
            self._record(key)
            for key in unknown
            if key not in self.sequences.records and not self.sequences.is_closed(key)
        ]

    def _replayed(self, task: ReplayTask, done: ReplayDone) -> _Replayed:
        key = task.incarnation, task.number
        if (done.incarnation, done.number) != key:
            raise SwapRefused(INVALID, f"the result is not that of a replay of {key}")
        if self.sequences.is_closed(key):
            return _Replayed(self, [], key)
        known = self._record(key)
        record = known.with_slots(done.fenced)
        left = [slot for slot in done.listed if not intervals.contains(record.slots, slot, slot + 1)]
        if left:
            raise SwapRefused(INVALID, f"{len(left)} files of {key} were listed, but are not sequenced: {left[0]}, …")
        if done.sealed:
            end_slot = record.slots[-1][1] if record.slots else 0
            if record.watermark < end_slot:
                raise SwapRefused(INVALID, f"{key} is not sealed: slot {record.watermark} is empty")
            record = record.with_end(end_slot)
        return _Replayed(self, [record] if record != known else [], key)

    def given_up(self, job_id: int, task: JobTask) -> None:
        """Note a job that failed for good.

        It will be planned again, but nothing waits for an unreadable journal any longer.
        """
        if task.replay is not None:
            key = task.replay.incarnation, task.replay.number
            _, scan = self._replay_jobs.pop(key, (0, 0))
            self._needs.sequence_failed(key, scan)
            _log.error(
                "a journal sequence cannot be replayed",
                incarnation=key[0],
                number=key[1],
                help="Its files are not lost. `braid jobs list` shows the error.",
            )

    async def scan_ended(self, scan: int) -> None:
        self._scan_job = None
        self._needs.scan_ended(scan, [key for key, each in self.sequences.records.items() if not each.is_complete])
        await self._plan_replays()
        if self.backlog.is_behind() and self.backlog.newest_scan < self.backlog.wanted_scan:
            await self._plan_scan()

    async def replay_ended(self, key: JournalSequenceKey) -> None:
        _, scan = self._replay_jobs.pop(key, (0, 0))
        self._needs.sequence_replayed(key, scan)
        await self._plan_replays()

    # ── gaps ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def give_up_once(self) -> int:
        """Append the held batches that have waited long enough. Returns how many."""
        async with self._state_lock:
            now_ms = self._clock.wall_ms()
            self._look_for_progress(now_ms)
            due = list(self._due(now_ms))
            for start in range(0, len(due), GIVEN_UP_AT_ONCE_MAX):
                await self._sequencer.give_up(due[start : start + GIVEN_UP_AT_ONCE_MAX])
            return len(due)

    def _due(self, now_ms: int) -> Iterable[HeldBatch]:
        for (_, partition_id), waiting in self._held.by_key.items():
            is_gone = partition_id not in self._catalog.partitions
            for batch in waiting.values():
                if is_gone or self._has_waited(batch.held_ms, now_ms):
                    yield batch

    def _look_for_progress(self, now_ms: int) -> None:
        seen = (self._sequencer.journal_counts.slow_files, self._needs.newest_ended_scan, self._needs.replayed_ms)
        # Without agents nobody can replay, and nobody could read what would be appended.
        if seen != self._progress_seen or not self._agents.agents:
            self._progress_seen, self._progress_ms = seen, now_ms

    def _has_waited(self, held_ms: int, now_ms: int) -> bool:
        return now_ms >= self._waits_until_ms(held_ms)

    def _waits_until_ms(self, held_ms: int) -> int:
        """Return until when a batch held since `held_ms` waits.

        Earlier batches may be in a journal that was written before. The batch waits until those are replayed, as long
        as scans and replays make progress.
        """
        enough_ms = held_ms + int(self._wait_s * 1000)
        if self._needs.tried_ms >= held_ms:
            return enough_ms
        stalled_ms = max(enough_ms, self._progress_ms) + int(STALLED_WAITS * self._wait_s * 1000)
        return min(stalled_ms, held_ms + int(self._wait_s_max * 1000))

    # ── for people ────────────────────────────────────────────────────────────────────────────────────────────────

    def statistics(self) -> JournalStatistics:
        counts = self._sequencer.journal_counts
        complete = sum(record.is_complete for record in self.sequences.records.values())
        return JournalStatistics(
            fast_files=counts.fast_files,
            slow_files=counts.slow_files,
            duplicate_batches=counts.duplicate_batches,
            late_batches=counts.late_batches,
            older_epoch_batches=counts.older_epoch_batches,
            dropped_batches=counts.dropped_batches,
            gaps_given_up=counts.gaps_given_up,
            held_batches=self._held.count,
            open_sequences=len(self.sequences.records) - complete,
            unreplayed_files=sum(record.missing_count for record in self.sequences.records.values()),
            complete_sequences=complete,
            closed_sequences=sum(intervals.count(closed) for closed in self.sequences.closed.values()),
            scans_requested=max(self.backlog.wanted_scan, self.backlog.newest_scan),
            scans_replayed=self._needs.replayed_scan,
            replayed_ms=self._needs.replayed_ms,
        )

    def describe(self, request: DescribeJournals) -> JournalDescription:
        live = {agent.incarnation for agent in self._agents.agents}
        described = [
            SequenceDescription(
                incarnation=record.incarnation,
                number=record.number,
                state="complete" if record.is_complete else "replaying" if key in self._replay_jobs else "open",
                watermark=record.watermark,
                sequenced_count=intervals.count(record.slots),
                end_slot=record.end_slot,
                opened_ms=record.opened_ms,
                is_live=record.incarnation in live,
            )
            for key, record in self.sequences.records.items()
        ]
        described.sort(key=lambda each: (each.state == "complete", each.opened_ms, each.incarnation, each.number))
        listed = described[: max(0, request.sequences_max)]
        return JournalDescription(self.statistics(), listed, *self._describe_held())

    def _describe_held(self) -> tuple[int, int, str, int]:
        """Describe the wait of the oldest held batch.

        Returns (start ms, latest end ms, what it waits for, number of journal sequences that may hold it);
        (-1, -1, "", 0) if no batch is held.
        """
        held_ms = self._held.oldest_ms
        if held_ms < 0:
            return -1, -1, "", 0
        if self._needs.tried_ms >= held_ms:
            return held_ms, self._waits_until_ms(held_ms), WAITS_FOR_BATCH, 0
        return held_ms, self._waits_until_ms(held_ms), WAITS_FOR_JOURNALS, len(self._needs.untried)


def should_seal(record: JournalSequenceRecord, is_written: bool, now_ms: int, sequence_age_s: float) -> bool:
    """Whether to seal a sequence: nobody writes to it, or it is long past its age."""
    return not is_written or now_ms - record.opened_ms >= 2000 * sequence_age_s
