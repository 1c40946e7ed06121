"""Mistakes in journals: Lightning topics, and what ripcord makes of all others while the control plane is away."""

from contextlib import AbstractContextManager
from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.journal import Journal
from braidlog.agent.replaying import JournalExecutor
from braidlog.agent.ripcord.producer_ids import ProducerIds, block_start
from braidlog.agent.ripcord.ripcord import Ripcord
from braidlog.control import gaps, journal_plan, journals, producer_partition
from braidlog.control.gaps import Numbers, Standing
from braidlog.control.journal_plan import JournalPlan
from braidlog.control.journals import Journals
from braidlog.control.producer_partition import Judged, ProducerPartition
from braidlog.control.replays import ReplayNeeds
from braidlog.objects.store import AlreadyExists, Bytes, Store
from braidlog.sim.mistakes.mistake import mistake, replaced
from braidlog.writing.request import Draft, WriteRequest

# ── agents ──


@mistake("Acknowledges what is on its way into the journal.", "lightning")
def _acknowledge_before_the_journal() -> AbstractContextManager[None]:
    original = Journal.submit

    def submit(self: Journal, draft: Draft) -> None:
        for requests in draft.groups.values():
            for request in requests:
                _acknowledge(request)
        original(self, draft)

    return replaced((Journal, "submit", submit))


def _acknowledge(request: WriteRequest) -> None:
    on_done, request.on_done = request.on_done, lambda done: None
    request.error_code = int(ErrorCode.none)
    request.base_offset = 0
    on_done(request)


@mistake("Takes whatever it finds in its slot for its own file, fences too.", "lightning")
def _fence_ignored() -> AbstractContextManager[None]:
    async def put_or_find(self: Journal, draft: Draft) -> bool:
        try:
            await self._store.put(draft.key, draft.packed)
        except AlreadyExists:
            pass
        return True

    return replaced((Journal, "_put_or_find", put_or_find))


@mistake("Puts its file over the fence that it finds in its slot.", "lightning")
def _fence_overwritten() -> AbstractContextManager[None]:
    async def put_or_find(self: Journal, draft: Draft) -> bool:
        store: Store = self._store
        packed: Bytes = draft.packed
        await store.put(draft.key, packed, overwrite=True)
        return True

    return replaced((Journal, "_put_or_find", put_or_find))


@mistake("Takes a listing of a sequence for the proof that no other file will ever be there.", "lightning")
def _absence_without_a_seal() -> AbstractContextManager[None]:
    async def seal(self: JournalExecutor, task: Any) -> set[int]:
        return set()

    return replaced((JournalExecutor, "_seal", seal), (journals, "should_seal", lambda *about: True))


@mistake("Gives producers ids of a block that it has not claimed.", "ripcord")
def _producer_ids_unclaimed() -> AbstractContextManager[None]:
    async def claim(self: ProducerIds) -> None:
        self._next, self._end = block_start(0), block_start(1)

    return replaced((ProducerIds, "_claim", claim))


@mistake("Lets topics leave the journal as soon as the control plane is back, whatever is not sequenced.", "ripcord")
def _journal_left_too_early() -> AbstractContextManager[None]:
    return replaced((Ripcord, "await_replay", lambda self: None))


# ── the control plane ──


@mistake("Takes a scan for replayed when it has ended.", "ripcord")
def _scan_taken_for_a_replay() -> AbstractContextManager[None]:
    original = ReplayNeeds._advance

    def advance(self: ReplayNeeds) -> None:
        needs, self._needs = self._needs, {}
        original(self)
        self._needs = needs

    return replaced((ReplayNeeds, "_advance", advance))


@mistake("Appends an idempotent producer's batches as they come, whatever is missing before them.", "lightning")
def _nothing_waits() -> AbstractContextManager[None]:
    original = ProducerPartition.judge_journaled

    def judge(self: ProducerPartition, *batch: int, any_start: bool, force: bool = False) -> Judged:
        return original(self, *batch, any_start=any_start, force=True)

    return replaced((ProducerPartition, "judge_journaled", judge))


@mistake("Keeps batches that wait in memory only.", "lightning-sleepers")
def _held_in_memory() -> AbstractContextManager[None]:
    return replaced((journal_plan, "write_held", lambda tx, batches: None))


@mistake("Drops batches that have waited long enough.", "lightning-crowded")
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


@mistake("Forgets a gap when it is given up, so that what arrives late is taken for a duplicate.", "lightning-crowded")
def _late_batches_dropped() -> AbstractContextManager[None]:
    def take(numbers: Numbers, start: int, end: int) -> Numbers:
        return Numbers(numbers.epoch, max(numbers.next, end))

    return replaced((producer_partition, "take", take))


@mistake("Takes every number below the highest for one that was sequenced.", "lightning-crowded")
def _highest_number_counts() -> AbstractContextManager[None]:
    def standing(numbers: Numbers, start: int, end: int) -> Standing:
        return Standing.SEQUENCED if start < numbers.next else gaps.standing(numbers, start, end)

    return replaced((producer_partition, "standing", standing))


@mistake("Drops an epoch's batches that come behind those of a later one.", "lightning-crowded")
def _older_epoch_refused() -> AbstractContextManager[None]:
    def judge(self: ProducerPartition, *batch: int, any_start: bool, force: bool) -> Judged:
        return Judged.DUPLICATE

    return replaced((ProducerPartition, "_judge_older", judge))


@mistake("Forgets producers that were silent for long, though journals are not replayed.", "lightning-outage")
def _producers_expire_in_the_outage() -> AbstractContextManager[None]:
    return replaced((Journals, "sequenced_until_ms", lambda self: self._clock.wall_ms()))
