"""Mistakes in how shards share their uploads."""

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from braidlog.scheduling import regrouping
from braidlog.scheduling.groups import buddy, members
from braidlog.scheduling.loads import group_load
from braidlog.scheduling.policy import Adaptive
from braidlog.scheduling.regrouping import Merge, RegroupThresholds, Split, Standing
from braidlog.sim.mistakes.mistake import mistake, replaced
from braidlog.writing import regrouping as groups_on_the_board
from braidlog.writing.board import Clearance, Outcome, Ring
from braidlog.writing.offering import Offering
from braidlog.writing.pulling import PulledDraft, Pulling
from braidlog.writing.request import WriteRequest
from braidlog.writing.sharing import Sharing


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

    def merge(groups: list[int], group: int) -> list[int]:
        other = buddy(groups, group)
        return [group if each == other else each for each in groups]

    return replaced((Adaptive, "regroup", regroup), (groups_on_the_board, "merge", merge))


@mistake("Keeps the group's lock until the upload is over.", "restless")
def _lock_held_in_the_upload() -> AbstractContextManager[None]:
    original_take, original_uploaded = Sharing._take_turn, Sharing.uploaded

    def take_turn(self: Sharing) -> float | None:
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

    def uploaded(self: Sharing, draft: Any) -> None:
        kept = self.__dict__.get("_kept")
        if isinstance(draft, PulledDraft) and kept:
            self._locks.give(kept.pop())
        original_uploaded(self, draft)

    return replaced((Sharing, "_take_turn", take_turn), (Sharing, "uploaded", uploaded))


@mistake("A batch that another shard has pulled may be sequenced at once, whatever is still on its way.", "restless")
def _order_lost_between_shards() -> AbstractContextManager[None]:
    def clearance(self: Ring, ticket: int) -> Clearance:
        return Clearance.CLEAR

    return replaced((Ring, "clearance", clearance))


@mistake("Once a shard is alone, its batches no longer wait for those that others have pulled.", "restless")
def _order_lost_across_a_split() -> AbstractContextManager[None]:
    original = Sharing._stop_sharing

    def stop_sharing(self: Sharing) -> bool:
        stopped = original(self)
        if stopped:
            self._order._latest.clear()
        return stopped

    return replaced((Sharing, "_stop_sharing", stop_sharing))


@mistake("What waits in a shard's batcher stays there when its group grows, and later batches overtake it.", "shards")
def _order_lost_across_a_merge() -> AbstractContextManager[None]:
    def start_sharing(self: Sharing) -> None:
        self._is_sharing = True

    return replaced((Sharing, "_start_sharing", start_sharing))


@mistake("Answers for a batch whose uploader has died as if it had been written.", "shards")
def _acknowledge_what_died() -> AbstractContextManager[None]:
    original = Offering._lose

    def lose(self: Offering, ticket: int, puller: Any) -> None:
        if ticket % 2:
            self.finish(ticket, Outcome(0, 0, 0))
        else:
            original(self, ticket, puller)

    return replaced((Offering, "_lose", lose))


@mistake("Takes whatever lies in a slot for the outcome of the batch that uses it now.", "shards")
def _stale_outcome_taken() -> AbstractContextManager[None]:
    from braidlog.writing import board

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
        _, error_code, base_offset, log_start_offset, _ = board._OUTCOME.unpack_from(self._slots, at)
        return Outcome(error_code, base_offset, log_start_offset) if any(self._slots[at : at + 8]) else None

    return replaced((Ring, "publish", publish), (Ring, "outcome", outcome))


@mistake("Moves a ring's head before it has read what it takes, and is interrupted in between.", "shards")
def _pull_loses_a_batch() -> AbstractContextManager[None]:
    original = Pulling.pull

    def pull(self: Pulling, shards: Any, bytes_target: int) -> PulledDraft | None:
        draft = original(self, shards, bytes_target)
        if draft is not None and len(draft.firsts) > 1 and self._board.turn(shards[0]) % 7 == 0:
            last = next(reversed(draft.groups))
            for request in draft.groups.pop(last):
                asyncio.get_running_loop().call_soon(_pretend, request)
        return draft

    return replaced((Pulling, "pull", pull))


def _pretend(request: WriteRequest) -> None:
    request.base_offset = 0
    request.on_done(request)
