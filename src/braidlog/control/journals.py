"""Journals: looks for them, has them replayed, and decides how long a batch waits for what comes before it."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from braidlog.control import intervals
from braidlog.control.agents import AgentRegistry
from braidlog.control.catalog import Catalog
from braidlog.control.counters import NumberBlocks
from braidlog.control.held import HeldBatch, HeldBatches
from braidlog.control.interface import (
    REPLAY,
    SCAN,
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
from braidlog.control.jobs import Finish, JobBoard
from braidlog.control.journal_settings import JournalSettings
from braidlog.control.metadata import MetadataStore, Transaction
from braidlog.control.replays import ReplayNeeds
from braidlog.control.sequencer import Sequencer
from braidlog.control.sequences import SequenceKey, SequenceRecord, Sequences, write_sequences
from braidlog.control.sequencing_plan import ClassicGap
from braidlog.control.swap import INVALID, SwapRefused
from braidlog.objects.keys import SLOTS_PER_SEQUENCE_MAX
from braidlog.runtime.clock import Clock

REPLAYS_AT_ONCE_MAX = 32
GIVEN_UP_AT_ONCE_MAX = 5_000
GAPS_ASKED_MAX = 10_000
"""Gaps of classic producers that are remembered with the scan that tells."""
LIGHTNING = "lightning"

_AGENTS_JOURNAL = "agents_may_journal"
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Recorded:
    """The end of a job about journals, as far as it is about records of sequences."""

    journals: "Journals"
    records: list[SequenceRecord]

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
    key: SequenceKey

    async def apply(self) -> None:
        await _Recorded.apply(self)
        await self.journals.replay_ended(self.key)


class Journals:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        turn: asyncio.Lock,
        catalog: Catalog,
        agents: AgentRegistry,
        board: JobBoard,
        sequencer: Sequencer,
        sequences: Sequences,
        held: HeldBatches,
        clock: Clock,
        settings: JournalSettings,
        wait_s_max: float,
    ) -> None:
        """`wait_s_max`: no batch waits longer, or what is known of its producer would be forgotten before it."""
        self._metadata = metadata
        self._turn = turn
        self._catalog = catalog
        self._agents = agents
        self._board = board
        self._sequencer = sequencer
        self.sequences = sequences
        self._held = held
        self._clock = clock
        self._settings = settings
        self._wait_s_max = min(settings.gap_s_max, wait_s_max)
        self._wait_s = min(settings.gap_s, wait_s_max)
        self._scan_numbers = NumberBlocks(metadata, "journal_scan", 1_000)
        self._needs = ReplayNeeds()
        self._may_exist = False
        self._agents_journal = False
        """An agent may have journaled what the control plane was not told of."""
        self._newest_scan = 0
        self._wanted_scan = 0
        """Until it is replayed, journals may hold what classic topics should have got."""
        self._asked: dict[ClassicGap, int] = {}
        """The scan that each gap of a classic producer has asked for."""
        self._scan_job: tuple[int, int] | None = None
        """Its id, and the scan's number."""
        self._replay_jobs: dict[SequenceKey, tuple[int, int]] = {}
        """Their ids, and the newest scan that had ended when they were planned."""

    async def load(self) -> None:
        await self.sequences.load(self._metadata)
        await self._held.load(self._metadata)
        rows = await self._metadata.read(
            lambda tx: tx.query("SELECT value FROM facts WHERE name = ?", (_AGENTS_JOURNAL,))
        )
        self._agents_journal = bool(rows)
        # Jobs of before the start go on, but nobody knows which scan they belong to.
        for job_id, _ in self._board.open_of_kind(SCAN):
            self._scan_job = job_id, 0
        for job_id, task in self._board.open_of_kind(REPLAY):
            if task.replay is not None:
                self._replay_jobs[task.replay.incarnation, task.replay.number] = job_id, 0
        self._board.finishers[SCAN] = self._board.finishers[REPLAY] = self
        self._look()
        if self._agents_journal:
            self._wanted_scan = 1

    # ── what others ask ───────────────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """Whether there may be journals at all. Without a reason to think so, nobody has to look for any."""
        self._may_exist = (
            self._may_exist
            or self._agents_journal
            or not self.sequences.is_empty
            or bool(self._catalog.topics_of_type(LIGHTNING))
        )

    @property
    def may_exist(self) -> bool:
        return self._may_exist or bool(self.sequences.records)

    def is_behind(self) -> bool:
        """Whether journals may hold what classic topics should have got while the control plane was away."""
        return self._wanted_scan > self._needs.replayed_scan

    def asks_for_scan(self, gap: ClassicGap) -> bool:
        """Whether what is missing may be in the journal of an agent that was cut off, and took writes by itself. That
        it is not there is known when a scan was replayed that began after the gap was seen."""
        if not self._agents_journal:
            return False
        scan = self._asked.get(gap)
        if scan is None:
            scan = self._asked[gap] = self.want_scan()
            if len(self._asked) > GAPS_ASKED_MAX:
                del self._asked[next(iter(self._asked))]
        return scan > self._needs.replayed_scan

    def sequenced_until_ms(self) -> int:
        """All that was journaled before this time is sequenced."""
        return self._needs.replayed_ms if self.may_exist else self._clock.wall_ms()

    @property
    def scans_replayed(self) -> int:
        return self._needs.replayed_scan

    async def agent_journals(self) -> None:
        """An agent is there that may write journals while the control plane is away."""
        if self._agents_journal:
            return
        async with self._turn:
            await self._metadata.transact(
                lambda tx: tx.execute(
                    "INSERT INTO facts (name, value) VALUES (?, '1') ON CONFLICT (name) DO NOTHING", (_AGENTS_JOURNAL,)
                )
            )
            self._agents_journal = self._may_exist = True

    def want_scan(self) -> int:
        """Somebody needs to know that everything journaled up to now is sequenced. Returns the scan that will tell."""
        self._may_exist = True
        self._wanted_scan = max(self._wanted_scan, self._newest_scan + 1)
        return self._newest_scan + 1

    async def request_scan(self, request: RequestScan) -> ScanRequested:
        scan = self.want_scan()
        _log.info("a scan of the journals was asked for", incarnation=request.incarnation, scan=scan)
        await self.plan_once()
        return ScanRequested(scan)

    async def end_sequence(self, request: EndSequence) -> None:
        if not 0 <= request.slot_count <= SLOTS_PER_SEQUENCE_MAX:
            return
        key = request.incarnation, request.number
        async with self._turn:
            if not self.sequences.is_closed(key):
                record = self._record(key).with_end(request.slot_count)
                await self._metadata.transact(lambda tx: write_sequences(tx, [record]))
                self.sequences.put([record])

    def _record(self, key: SequenceKey) -> SequenceRecord:
        return self.sequences.records.get(key) or SequenceRecord(*key, self._clock.wall_ms())

    # ── scans and replays ─────────────────────────────────────────────────────────────────────────────────────────

    async def plan_once(self) -> None:
        """Have it looked for journals, unless somebody is about it, and replay what needs it."""
        async with self._turn:
            self._look()
            if self.may_exist and (self._scan_job is None or not self._board.is_open(self._scan_job[0])):
                await self._plan_scan()
            await self._plan_replays()

    async def _plan_scan(self) -> None:
        await self._scan_numbers.reserve(1)
        scan = self._scan_numbers.take()
        task = JobTask(SCAN, [], [], 0, scan=ScanTask(self.sequences.known_below()))
        self._newest_scan = scan
        self._needs.scan_asked(scan, self._clock.wall_ms())
        for job_id in await self._board.add([(task, "journals")]):
            self._scan_job = job_id, scan

    async def _plan_replays(self) -> None:
        records = self.sequences.records
        needed: list[SequenceRecord] = []
        for key in self._needs.needed:
            record = records.get(key)
            if record is None or record.is_complete:
                self._needs.sequence_complete(key)
            else:
                needed.append(record)
        self._replay_jobs = {key: job for key, job in self._replay_jobs.items() if self._board.is_open(job[0])}
        needed.sort(key=lambda record: (record.opened_ms, record.key))
        room = REPLAYS_AT_ONCE_MAX - len(self._replay_jobs)
        live = {agent.incarnation for agent in self._agents.agents}
        for record in [each for each in needed if each.key not in self._replay_jobs][: max(0, room)]:
            task = JobTask(REPLAY, [], [], 0, replay=self._replay_task(record, record.incarnation in live))
            for job_id in await self._board.add([(task, f"journal {record.incarnation}/{record.number}")]):
                self._replay_jobs[record.key] = job_id, self._needs.newest_ended_scan

    def _replay_task(self, record: SequenceRecord, is_live: bool) -> ReplayTask:
        watermark = record.watermark
        known = [each for each in record.slots if each[0] >= watermark]
        seal = should_seal(record, is_live, self._clock.wall_ms(), self._settings.sequence_age_s)
        return ReplayTask(record.incarnation, record.number, watermark, known, seal)

    def finish(self, task: JobTask, request: CompleteJob) -> Finish:
        """The end of a scan or of a replay, as the job board wants it."""
        if task.kind == SCAN and request.scan is not None:
            scan = self._scan_job[1] if self._scan_job is not None and self._scan_job[0] == request.job_id else 0
            return _Scanned(self, self._found(request.scan), scan)
        if task.kind == REPLAY and task.replay is not None and request.replay is not None:
            return self._replayed(task.replay, request.replay)
        raise SwapRefused(INVALID, f"this is not the result of a {task.kind}")

    def _found(self, done: ScanDone) -> list[SequenceRecord]:
        unknown = dict.fromkeys((each.incarnation, each.number) for each in done.sequences)
        return [
            self._record(key)
            for key in unknown
            if key not in self.sequences.records and not self.sequences.is_closed(key)
        ]

    def _replayed(self, task: ReplayTask, done: ReplayDone) -> _Replayed:
        key = task.incarnation, task.number
        if (done.incarnation, done.number) != key:
            raise SwapRefused(INVALID, f"a replay of {key} was asked for")
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

    async def scan_ended(self, scan: int) -> None:
        self._scan_job = None
        self._needs.scan_ended(scan, [key for key, each in self.sequences.records.items() if not each.is_complete])
        await self._plan_replays()
        if self.is_behind() and self._newest_scan < self._wanted_scan:
            await self._plan_scan()

    async def replay_ended(self, key: SequenceKey) -> None:
        _, scan = self._replay_jobs.pop(key, (0, 0))
        self._needs.sequence_replayed(key, scan)
        await self._plan_replays()

    # ── gaps ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def give_up_once(self) -> int:
        """Append what has waited for long enough. Returns how many batches did."""
        async with self._turn:
            due = list(self._due(self._clock.wall_ms()))
            for start in range(0, len(due), GIVEN_UP_AT_ONCE_MAX):
                await self._sequencer.give_up(due[start : start + GIVEN_UP_AT_ONCE_MAX])
            return len(due)

    def _due(self, now_ms: int) -> Iterable[HeldBatch]:
        for (_, partition_id), waiting in self._held.by_key.items():
            is_gone = partition_id not in self._catalog.partitions
            for batch in waiting.values():
                if is_gone or self._has_waited(batch.held_ms, now_ms):
                    yield batch

    def _has_waited(self, held_ms: int, now_ms: int) -> bool:
        """What comes before it may be in a journal of before it was there, which is still to be replayed."""
        waited_s = (now_ms - held_ms) / 1000
        is_replayed = self._needs.replayed_ms >= held_ms
        return waited_s >= (self._wait_s if is_replayed else self._wait_s_max)

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
            scans_requested=max(self._wanted_scan, self._newest_scan),
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
        return JournalDescription(self.statistics(), listed, self._held.oldest_ms)


def should_seal(record: SequenceRecord, is_live: bool, now_ms: int, sequence_age_s: float) -> bool:
    """Whether nobody writes to the sequence any more, or should: its agent is gone, or must have left it long ago."""
    return not is_live or now_ms - record.opened_ms >= 2000 * sequence_age_s
