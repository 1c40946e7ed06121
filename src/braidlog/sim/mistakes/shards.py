"""Mistakes in how shards share their uploads."""

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from braidlog.scheduling import regrouping
from braidlog.scheduling.loads import group_load
from braidlog.scheduling.policy import Adaptive
from braidlog.scheduling.regrouping import Merge, RegroupThresholds, Split, Standing
from braidlog.scheduling.shard_groups import buddy, members
from braidlog.sim.mistakes.mistake import mistake, replaced
from braidlog.writing.journal.uploader import JournalUploader
from braidlog.writing.order_node import OrderNode
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.shards.board import Clearance, Outcome, PullerId, Ring
from braidlog.writing.shards.journaled_batches import JournaledBatches
from braidlog.writing.shards.outbox import Outbox
from braidlog.writing.shards.puller import PulledDraft, Puller
from braidlog.writing.shards.scheduler import ShardScheduler


@mistake("The higher of two buddies merges them.", "shards")
def _merge_by_the_higher_buddy() -> AbstractContextManager[None]:
    original = Adaptive.regroup

    def regroup(self: Adaptive, thresholds: RegroupThresholds, standing: Standing, shard: int) -> Split | Merge | None:
        decision = original(self, thresholds, standing, shard)
        groups, loads, now_s, memory_s = standing.groups, standing.loads, standing.now_s, thresholds.memory_s
        lower = buddy(groups, shard) if groups[shard] == shard else None
        if decision is not None or lower is None or lower > shard:
            return decision
        own = group_load(loads, members(groups, shard), now_s=now_s, memory_s=memory_s)
        other = group_load(loads, members(groups, lower), now_s=now_s, memory_s=memory_s)
        is_calm = regrouping._fit_one_stream(thresholds, own, other)
        return Merge(shard, members(groups, lower)) if is_calm else None

    return replaced((Adaptive, "regroup", regroup))


@mistake("Keeps the group's lock until the upload is over.", "restless")
def _lock_held_in_the_upload() -> AbstractContextManager[None]:
    original_take, original_uploaded = ShardScheduler._pull_if_due, ShardScheduler.uploaded

    def pull_if_due(self: ShardScheduler) -> float | None:
        kept: list[int] = []
        uploads = self._shared_in_flight
        give = self._locks.give
        setattr(self._locks, "give", kept.append)  # noqa: B010 - one instance is to behave wrongly
        try:
            return original_take(self)
        finally:
            setattr(self._locks, "give", give)  # noqa: B010
            for group in kept:
                if self._shared_in_flight > uploads:
                    self.__dict__.setdefault("_kept", []).append(group)
                else:
                    give(group)

    def uploaded(self: ShardScheduler, draft: Any) -> None:
        kept = self.__dict__.get("_kept")
        if isinstance(draft, PulledDraft) and kept:
            self._locks.give(kept.pop())
        original_uploaded(self, draft)

    return replaced((ShardScheduler, "_pull_if_due", pull_if_due), (ShardScheduler, "uploaded", uploaded))


@mistake("Sequences a batch that another shard has pulled at once, before earlier ones.", "restless")
def _order_lost_between_shards() -> AbstractContextManager[None]:
    def clearance(self: Ring, ticket: int) -> Clearance:
        return Clearance.CLEAR

    return replaced((Ring, "clearance", clearance))


@mistake("Lets the batches of a shard that is alone again overtake those that others have pulled.", "restless")
def _order_lost_across_a_split() -> AbstractContextManager[None]:
    original = ShardScheduler._stop_sharing

    def stop_sharing(self: ShardScheduler, *, unless_joined: bool) -> bool:
        stopped = original(self, unless_joined=unless_joined)
        if stopped:
            self._outbox._order._latest.clear()
        return stopped

    return replaced((ShardScheduler, "_stop_sharing", stop_sharing))


@mistake("Leaves requests in a shard's batcher when its group grows, so that later ones overtake them.", "shards")
def _order_lost_across_a_merge() -> AbstractContextManager[None]:
    def start_sharing(self: ShardScheduler) -> None:
        self._is_sharing = True

    return replaced((ShardScheduler, "_start_sharing", start_sharing))


@mistake("Acknowledges a batch whose uploader has died.", "shards")
def _acknowledge_what_died() -> AbstractContextManager[None]:
    original = Outbox._lose

    def lose(self: Outbox, ticket: int, puller: Any) -> None:
        if ticket % 2:
            self.finish(ticket, Outcome(0, 0, 0))
        else:
            original(self, ticket, puller)

    return replaced((Outbox, "_lose", lose))


@mistake("Takes a slot's old outcome for that of the batch that uses it now.", "shards")
def _stale_outcome_taken() -> AbstractContextManager[None]:
    from braidlog.writing.shards import board

    original_publish = Ring.publish

    def publish(self: Ring, arrival_s: float, description: bytes, records: Any, *, clear: bool) -> int | None:
        slot = self._slot(self.tail)
        at = slot + board._OUTCOME_AT
        before = bytes(self._slots[at : slot + board.SLOT_BYTES])
        ticket = original_publish(self, arrival_s, description, records, clear=clear)
        if ticket is not None:
            self._slots[at : slot + board.SLOT_BYTES] = before
        return ticket

    def outcome(self: Ring, ticket: int) -> Outcome | None:
        at = self._slot(ticket) + board._OUTCOME_AT + 4
        _, error_code, base_offset, log_start_offset, _, _ = board._OUTCOME.unpack_from(self._slots, at)
        return Outcome(error_code, base_offset, log_start_offset) if any(self._slots[at : at + 8]) else None

    return replaced((Ring, "publish", publish), (Ring, "outcome", outcome))


@mistake("Moves the head of a shard's queue before it has read the batch, and is interrupted in between.", "shards")
def _pull_loses_a_batch() -> AbstractContextManager[None]:
    original = Puller.pull

    def pull(self: Puller, shards: Any, bytes_target: int) -> PulledDraft | None:
        draft = original(self, shards, bytes_target)
        if draft is not None and len(draft.firsts) > 1 and self._board.pull_count(shards[0]) % 7 == 0:
            last = next(reversed(draft.partitions))
            for request in draft.partitions.pop(last):
                asyncio.get_running_loop().call_soon(_pretend, request)
        return draft

    return replaced((Puller, "pull", pull))


@mistake("Acknowledges a journaled batch that another shard has pulled before it is stored.", "lightning-shards")
def _acknowledge_what_is_pulled() -> AbstractContextManager[None]:
    original = JournalUploader.submit

    def submit(self: JournalUploader, draft: Draft) -> None:
        original(self, draft)
        if isinstance(draft, PulledDraft):
            draft.open_file()
            for requests in draft.partitions.values():
                for request in requests:
                    _pretend(request)

    return replaced((JournalUploader, "submit", submit))


@mistake("Lets batches on the classic path overtake one that another shard has journaled.", "ripcord-shards")
def _order_lost_across_an_outage() -> AbstractContextManager[None]:
    original = JournaledBatches.add

    def add(self: JournaledBatches, puller: PullerId, number: int, node: OrderNode, partition: Any) -> None:
        original(self, puller, number, node, partition)
        node.settle()

    return replaced((JournaledBatches, "add", add))


def _pretend(request: WriteRequest) -> None:
    request.base_offset = 0
    request.way_back(request)
