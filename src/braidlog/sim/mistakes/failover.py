"""Mistakes in control planes that keep their metadata in the bucket."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from braidlog.control.interface import FeedEvent
from braidlog.control.log.feed import Feed
from braidlog.control.metadata.delta_log import DeltaLog
from braidlog.control.metadata.deltas import Delta, Position, behind, decode_delta, encode_delta
from braidlog.control.metadata.progress import Progress
from braidlog.control.metadata.store import MetadataError
from braidlog.objects.store import StoreError
from braidlog.sim.mistakes.mistake import mistake, replaced


@mistake("Keeps writing after another control plane has taken over the metadata.", "failover")
def _deposed_writes_on() -> AbstractContextManager[None]:
    async def append(self: DeltaLog, delta: Delta, nonce: bytes, position: Position, known_s: float) -> Position:
        while (found := await self._create(delta.number, encode_delta(delta, nonce))) is not None:
            other, other_nonce = decode_delta(found, delta.number)
            position = behind(other, other_nonce, position)
            delta = msgspec.structs.replace(
                delta,
                number=position.number + 1,
                previous=position.nonce,
                fencing_epoch=max(delta.fencing_epoch, position.fencing_epoch),
            )
        return behind(delta, nonce, position)

    return replaced((DeltaLog, "append", append))


@mistake("Answers before the delta is stored.", "failover")
def _answer_before_stored() -> AbstractContextManager[None]:
    async def wait(self: Progress) -> None:
        pass

    return replaced((Progress, "wait", wait))


@mistake("Tells agents of changes whose delta is not stored yet.", "failover")
def _feed_before_stored() -> AbstractContextManager[None]:
    def publish(self: Feed, events: Iterable[FeedEvent]) -> None:
        self._append(events)

    return replaced((Feed, "publish", publish))


@mistake("Gives up a delta that the store refused, though others are planned on top of it.", "failover")
def _give_up_what_is_planned() -> AbstractContextManager[None]:
    original = DeltaLog.append

    async def append(self: DeltaLog, delta: Delta, nonce: bytes, position: Position, known_s: float) -> Position:
        try:
            return await original(self, delta, nonce, position, known_s)
        except MetadataError:
            return position  # as if it had been stored

    return replaced((DeltaLog, "append", append))


@mistake("Leaves out a delta now and then when it catches up.", "failover")
def _skip_a_delta() -> AbstractContextManager[None]:
    original = DeltaLog.read_behind

    async def read_behind(self: DeltaLog, position: Position) -> Any:
        async for delta, after in original(self, position):
            yield (msgspec.structs.replace(delta, changes=b"") if after.number % 7 == 0 else delta), after

    return replaced((DeltaLog, "read_behind", read_behind))


@mistake("Treats a put without an answer as failed.", "failover")
def _unknown_is_failure() -> AbstractContextManager[None]:
    async def append(self: DeltaLog, delta: Delta, nonce: bytes, position: Position, known_s: float) -> Position:
        # The number is given up, and the same changes go to the next: both may count in the end.
        try:
            await self._store.put(f"metadata/delta/{delta.number:020d}", encode_delta(delta, nonce))
        except StoreError:
            moved = msgspec.structs.replace(delta, number=delta.number + 1)
            return await original(self, moved, nonce, position, known_s)
        return behind(delta, nonce, position)

    original = DeltaLog.append
    return replaced((DeltaLog, "append", append))
