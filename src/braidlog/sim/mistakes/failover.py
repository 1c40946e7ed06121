"""Mistakes in control planes that keep their metadata in the bucket."""

from contextlib import AbstractContextManager
from typing import Any

import msgspec

from braidlog.control.metadata.bucket import BucketMetadata
from braidlog.control.metadata.delta_log import DeltaLog
from braidlog.control.metadata.deltas import Delta, Position, behind, decode_delta, encode_delta
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
    original = BucketMetadata._commit

    async def commit(self: BucketMetadata, group: list[Any]) -> list[Any]:
        image = self._current_image()
        results, _ = await self._run(self._write_in, image.plan, [call.fn for call in group])
        await self._run(self._write_in, image.rollback)
        self._answer(group, results)
        return await original(self, group)

    return replaced((BucketMetadata, "_commit", commit))


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
