"""Mistakes in journals: Lightning topics and Ripcord."""

from contextlib import AbstractContextManager
from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.journal_jobs import JournalExecutor
from braidlog.agent.ripcord.producer_ids import ProducerIds, block_start
from braidlog.agent.ripcord.ripcord import Ripcord
from braidlog.control.journals import journals
from braidlog.control.journals import plan as journal_plan
from braidlog.control.journals.backlog import JournalBacklog
from braidlog.control.journals.plan import JournalPlan
from braidlog.control.journals.replays import ReplayNeeds
from braidlog.control.log import gaps, producer_partition
from braidlog.control.log.gaps import Numbers, Standing
from braidlog.control.log.judgement import OFFSET_UNKNOWN, Judgement, duplicate_of
from braidlog.control.log.producer_partition import ProducerPartition
from braidlog.objects.store import AlreadyExists, Bytes, Store
from braidlog.sim.mistakes.mistake import mistake, replaced
from braidlog.writing.journal.lazy_sequencing import OwnFile
from braidlog.writing.journal.uploader import JournalUploader
from braidlog.writing.request import Draft, WriteRequest

# ── agents ──


@mistake("Acknowledges before the journal file is stored.", "lightning")
def _acknowledge_before_the_journal() -> AbstractContextManager[None]:
    original = JournalUploader.submit

    def submit(self: JournalUploader, draft: Draft) -> None:
        for requests in draft.partitions.values():
            for request in requests:
                _acknowledge(request)
        original(self, draft)

    return replaced((JournalUploader, "submit", submit))


def _acknowledge(request: WriteRequest) -> None:
    way_back, request.way_back = request.way_back, lambda done: None
    request.error_code = int(ErrorCode.none)
    request.base_offset = 0
    way_back(request)


@mistake("Waits for the answer to each file before it commits the next one.", "lightning-busy")
def _one_file_at_a_time() -> AbstractContextManager[None]:
    original = OwnFile.sequenced

    def sequenced(self: OwnFile) -> None:
        self._draft.settle()
        original(self)

    return replaced((OwnFile, "handed_over", lambda self: None), (OwnFile, "sequenced", sequenced))


@mistake("Takes any object in its slot for its own file, even a fence.", "lightning")
def _fence_ignored() -> AbstractContextManager[None]:
    async def put_or_find(self: JournalUploader, draft: Draft) -> bool:
        try:
            await self._store.put(draft.key, draft.packed)
        except AlreadyExists:
            pass
        return True

    return replaced((JournalUploader, "_put_or_find", put_or_find))


@mistake("Overwrites the fence in its slot with its file.", "lightning")
def _fence_overwritten() -> AbstractContextManager[None]:
    async def put_or_find(self: JournalUploader, draft: Draft) -> bool:
        store: Store = self._store
        packed: Bytes = draft.packed
        await store.put(draft.key, packed, overwrite=True)
        return True

    return replaced((JournalUploader, "_put_or_find", put_or_find))


@mistake("Treats the listing of an unsealed journal sequence as complete.", "lightning")
def _absence_without_a_seal() -> AbstractContextManager[None]:
    async def seal(self: JournalExecutor, task: Any) -> set[int]:
        return set()

    return replaced((JournalExecutor, "_seal", seal), (journals, "should_seal", lambda *about: True))


@mistake("Gives producers ids from a block that it has not claimed.", "ripcord")
def _producer_ids_unclaimed() -> AbstractContextManager[None]:
    async def claim(self: ProducerIds) -> None:
        self._next, self._end = block_start(0), block_start(1)

    return replaced((ProducerIds, "_claim", claim))


@mistake("Stops journaling as soon as the control plane is back, before the journals are sequenced.", "ripcord")
def _journal_left_too_early() -> AbstractContextManager[None]:
    return replaced((Ripcord, "await_replay", lambda self: None))


# ── the control plane ──


@mistake("Treats everything that a scan has found as replayed.", "ripcord")
def _scan_taken_for_a_replay() -> AbstractContextManager[None]:
    original = ReplayNeeds._advance

    def advance(self: ReplayNeeds) -> None:
        needs, self._needs = self._needs, {}
        original(self)
        self._needs = needs

    return replaced((ReplayNeeds, "_advance", advance))


@mistake("Appends an idempotent producer's batches as they come, even after a gap.", "lightning")
def _nothing_waits() -> AbstractContextManager[None]:
    original = ProducerPartition.judge_journaled

    def judge(self: ProducerPartition, *batch: int, any_start: bool, force: bool = False) -> Judgement:
        return original(self, *batch, any_start=any_start, force=True)

    return replaced((ProducerPartition, "judge_journaled", judge))


@mistake("Keeps held batches in memory only.", "lightning-sleepers")
def _held_in_memory() -> AbstractContextManager[None]:
    return replaced((journal_plan, "write_held", lambda tx, batches: None))


@mistake("Drops batches that were held for long.", "lightning-crowded")
def _given_up_means_dropped() -> AbstractContextManager[None]:
    original = JournalPlan.release

    def release(self: JournalPlan, producer: Any, known: ProducerPartition, *where: Any, given_up: Any = ()) -> None:
        waiting = self._planned(known)
        for held in given_up:
            if waiting.get(held.name) == held:
                del waiting[held.name]
                self._dropped.append(held)
                self.counts.gaps_given_up += 1
        original(self, producer, known, *where)

    return replaced((JournalPlan, "release", release))


@mistake("Forgets a gap when it is given up, so that late batches look like duplicates.", "lightning-crowded")
def _late_batches_dropped() -> AbstractContextManager[None]:
    def take(numbers: Numbers, start: int, end: int) -> Numbers:
        return Numbers(numbers.epoch, max(numbers.next, end))

    return replaced((producer_partition, "take", take))


@mistake("Treats every sequence number below the highest as sequenced.", "lightning-crowded")
def _highest_number_counts() -> AbstractContextManager[None]:
    def standing(numbers: Numbers, start: int, end: int) -> Standing:
        return Standing.SEQUENCED if start < numbers.next else gaps.standing(numbers, start, end)

    return replaced((producer_partition, "standing", standing))


@mistake("Drops batches of an older producer epoch that arrive after a newer one's.", "lightning-crowded")
def _older_epoch_refused() -> AbstractContextManager[None]:
    def judge(self: ProducerPartition, *batch: int, any_start: bool, force: bool) -> Judgement:
        return duplicate_of(OFFSET_UNKNOWN)

    return replaced((ProducerPartition, "_judge_older", judge))


@mistake("Forgets silent producers although journals are not replayed.", "lightning-outage")
def _producers_expire_in_the_outage() -> AbstractContextManager[None]:
    return replaced((JournalBacklog, "sequenced_until_ms", lambda self: self._clock.wall_ms()))
