"""Writers that are not agents: their leases and their committed batches.

The batches are noted so that none is committed twice.
"""

import msgspec
from kio.schema.errors import ErrorCode

from braidlog.control.foundation import Foundation
from braidlog.control.interface import (
    CommitObjects,
    CommittedObjects,
    LeaseWriteEpoch,
    ObjectVerdict,
    WriteLease,
)
from braidlog.control.log.sequencer import RefusedTogether, Sequencer
from braidlog.control.log.write_epochs import WriteEpochs
from braidlog.control.metadata.store import Transaction
from braidlog.runtime.errors import BraidError, ControlUnavailable, InvalidSetting, Remedy

BATCHES_REMEMBERED = 16
"""How many batches of a writer to remember. A writer only ever repeats its newest batch."""
LEASES_MAX = 10_000
LEASE_LIFE_MS_MAX = 24 * 3600 * 1000
"""The longest life of a lease, however often it is renewed: uploads that are never committed must be swept."""
NAME_LENGTH_MAX = 200
_EXPIRED_PER_TRANSACTION = 1_000

_encode = msgspec.msgpack.Encoder().encode
_decode_verdicts = msgspec.msgpack.Decoder(list[ObjectVerdict]).decode


class LeaseEnded(BraidError):
    """The lease can no longer be renewed.

    Objects that were uploaded under it may be gone.
    """

    remedy = Remedy.GIVE_UP


class Writers:
    def __init__(
        self,
        foundation: Foundation,
        sequencer: Sequencer,
        epochs: WriteEpochs,
        *,
        store_url: str,
        lease_ms: int,
        expiration_ms: int,
    ) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._sequencer = sequencer
        self._epochs = epochs
        self._clock = foundation.clock
        self._store_url = store_url
        self._lease_ms = lease_ms
        self._expiration_ms = expiration_ms
        self._leases: dict[str, tuple[int, int, int]] = {}
        """The write epoch of each lease, and when it was granted and expires, in milliseconds. Keyed by lease id."""

    async def load(self) -> None:
        rows = await self._metadata.read(
            lambda tx: tx.query("SELECT lease_id, write_epoch, granted_ms, expires_ms FROM write_leases")
        )
        self._leases = {lease_id: (epoch, granted, expires) for lease_id, epoch, granted, expires in rows}

    def lowest_leased_epoch(self) -> int | None:
        """Return the lowest write epoch of all leases: the floor must not rise above it."""
        now_ms = self._clock.wall_ms()
        return min((epoch for epoch, _, expires_ms in self._leases.values() if expires_ms > now_ms), default=None)

    async def lease(self, request: LeaseWriteEpoch) -> WriteLease:
        lease_id = _checked_name("lease", request.lease_id)
        async with self._state_lock:
            now_ms = self._clock.wall_ms()
            lease = self._leases.get(lease_id)
            if lease is not None and lease[0] < self._epochs.floor:
                await self._forget([lease_id])
                raise LeaseEnded(
                    f"the lease {lease_id} has expired, and objects uploaded under it may have been swept",
                    help="Run the job again. Were its processes paused, or cut off from the control plane?",
                )
            if lease is not None and now_ms - lease[1] > LEASE_LIFE_MS_MAX:
                raise LeaseEnded(
                    f"the lease {lease_id} is a day old", help="Write in smaller batches: each has a lease of its own."
                )
            if lease is None and len(self._leases) >= LEASES_MAX:
                await self._forget_expired(now_ms)
            if lease is None and len(self._leases) >= LEASES_MAX:
                raise ControlUnavailable(
                    f"{len(self._leases)} leases are in use", help="Do writers end without committing?"
                )
            epoch, granted_ms = (lease[0], lease[1]) if lease is not None else (self._epochs.current, now_ms)
            # Many processes share a lease, so a renewal that would gain little is not written.
            if lease is None or lease[2] - now_ms < self._lease_ms * 3 // 4:
                row = (lease_id, epoch, granted_ms, now_ms + self._lease_ms)
                await self._metadata.plan(lambda tx: _write_lease(tx, row))
                self._leases[lease_id] = row[1:]
            return WriteLease(self._epochs.current, self._leases[lease_id][2] - now_ms, self._store_url)

    async def commit(self, request: CommitObjects) -> CommittedObjects:
        writer_id = _checked_name("writer", request.writer_id)
        batch_id = request.batch_id
        if batch_id < 0:
            raise InvalidSetting(f"batch {batch_id} of {writer_id}", help="Batch numbers start at 0.")
        async with self._state_lock:
            known = await self._metadata.read(lambda tx: _read_batch(tx, writer_id, batch_id))
            if isinstance(known, bytes):
                await self._forget([request.lease_id])
                return CommittedObjects(0, _decode_verdicts(known), repeated=True)
            if known is not None:
                message = f"{writer_id} has committed batch {known} already, and comes now with batch {batch_id}"
                return CommittedObjects(int(ErrorCode.invalid_request), [], error_message=message)
            now_ms = self._clock.wall_ms()

            def also(tx: Transaction, verdicts: list[ObjectVerdict]) -> None:
                _write_batch(tx, writer_id, batch_id, now_ms, _encode(verdicts))
                tx.execute("DELETE FROM write_leases WHERE lease_id = ?", (request.lease_id,))

            try:
                verdicts = await self._sequencer.commit_together(request.objects, also)
            except RefusedTogether as error:
                return CommittedObjects(error.error_code, [], error_message=str(error))
            self._leases.pop(request.lease_id, None)
            return CommittedObjects(0, verdicts)

    async def expire_once(self) -> None:
        """Forget leases that have run out, and writers that were silent for long."""
        async with self._state_lock:
            now_ms = self._clock.wall_ms()
            await self._forget_expired(now_ms)
        before_ms = now_ms - self._expiration_ms
        while True:
            async with self._state_lock:
                if not await self._metadata.plan(lambda tx: _delete_batches(tx, before_ms)):
                    return

    async def _forget_expired(self, now_ms: int) -> None:
        await self._forget([lease_id for lease_id, lease in self._leases.items() if lease[2] <= now_ms])

    async def _forget(self, lease_ids: list[str]) -> None:
        gone = [lease_id for lease_id in lease_ids if lease_id in self._leases]
        if not gone:
            return
        rows = [(lease_id,) for lease_id in gone]
        await self._metadata.plan(lambda tx: tx.executemany("DELETE FROM write_leases WHERE lease_id = ?", rows))
        for lease_id in gone:
            del self._leases[lease_id]


def _checked_name(what: str, name: str) -> str:
    if not 0 < len(name) <= NAME_LENGTH_MAX:
        raise InvalidSetting(f"the name of a {what} has {len(name)} characters", help=f"1 to {NAME_LENGTH_MAX}")
    return name


def _write_lease(tx: Transaction, row: tuple[str, int, int, int]) -> None:
    tx.execute("DELETE FROM write_leases WHERE lease_id = ?", row[:1])
    tx.execute("INSERT INTO write_leases (lease_id, write_epoch, granted_ms, expires_ms) VALUES (?, ?, ?, ?)", row)


def _read_batch(tx: Transaction, writer_id: str, batch_id: int) -> bytes | int | None:
    """Return the stored answer of a batch; None if the batch is new.

    If the batch is too old to have an answer, return the newest batch id.
    """
    rows = tx.query("SELECT verdicts FROM writer_batches WHERE writer_id = ? AND batch_id = ?", (writer_id, batch_id))
    if rows:
        return bytes(rows[0][0])
    newest = tx.query("SELECT MAX(batch_id) FROM writer_batches WHERE writer_id = ?", (writer_id,))[0][0]
    return int(newest) if newest is not None and newest > batch_id else None


def _write_batch(tx: Transaction, writer_id: str, batch_id: int, now_ms: int, verdicts: bytes) -> None:
    tx.execute(
        "INSERT INTO writer_batches (writer_id, batch_id, committed_ms, verdicts) VALUES (?, ?, ?, ?)",
        (writer_id, batch_id, now_ms, verdicts),
    )
    tx.execute(
        "DELETE FROM writer_batches WHERE writer_id = ? AND batch_id <= ?", (writer_id, batch_id - BATCHES_REMEMBERED)
    )


def _delete_batches(tx: Transaction, before_ms: int) -> int:
    """Delete the batches of silent writers.

    A writer's go all at once: with the newest, their order is known.
    """
    rows = tx.query(
        "SELECT writer_id FROM writer_batches GROUP BY writer_id HAVING MAX(committed_ms) < ? LIMIT ?",
        (before_ms, _EXPIRED_PER_TRANSACTION),
    )
    tx.executemany("DELETE FROM writer_batches WHERE writer_id = ?", rows)
    return len(rows)
