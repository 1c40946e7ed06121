"""Writers that are not agents: their leases, and what each has committed, so that nothing is committed twice."""

import asyncio

import msgspec

from braidlog.control.epochs import WriteEpochs
from braidlog.control.error_codes import ErrorCode
from braidlog.control.interface import (
    CommitObjects,
    CommittedObjects,
    LeaseWriteEpoch,
    ObjectVerdict,
    WriteLease,
)
from braidlog.control.metadata import MetadataStore, Transaction
from braidlog.control.sequencer import RefusedTogether, Sequencer
from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import BraidError, ControlUnavailable, InvalidSetting, Remedy

BATCHES_REMEMBERED = 16
"""Per writer. Whoever repeats a batch repeats its newest one."""
LEASES_MAX = 10_000
LEASE_LIFE_MS_MAX = 24 * 3600 * 1000
"""However often it is renewed: what was uploaded and never committed must be swept at some time."""
NAME_LENGTH_MAX = 200
_EXPIRED_PER_TRANSACTION = 1_000

_encode = msgspec.msgpack.Encoder().encode
_decode_verdicts = msgspec.msgpack.Decoder(list[ObjectVerdict]).decode


class LeaseEnded(BraidError):
    """A lease that can no longer be renewed: what was uploaded under it may be gone."""

    remedy = Remedy.GIVE_UP


class Writers:
    def __init__(
        self,
        metadata: MetadataStore,
        turn: asyncio.Lock,
        sequencer: Sequencer,
        epochs: WriteEpochs,
        clock: Clock,
        *,
        store_url: str,
        lease_ms: int,
        expiration_ms: int,
    ) -> None:
        self._metadata = metadata
        self._turn = turn
        self._sequencer = sequencer
        self._epochs = epochs
        self._clock = clock
        self._store_url = store_url
        self._lease_ms = lease_ms
        self._expiration_ms = expiration_ms
        self._leases: dict[str, tuple[int, int, int]] = {}
        """Write epoch, when it was granted, when it expires."""

    async def load(self) -> None:
        rows = await self._metadata.read(
            lambda tx: tx.query("SELECT lease_id, write_epoch, granted_ms, expires_ms FROM write_leases")
        )
        self._leases = {lease_id: (epoch, granted, expires) for lease_id, epoch, granted, expires in rows}

    def lowest_epoch_held(self) -> int | None:
        """The floor must not rise above it: objects of this epoch are still to be committed."""
        now_ms = self._clock.wall_ms()
        return min((epoch for epoch, _, expires_ms in self._leases.values() if expires_ms > now_ms), default=None)

    async def lease(self, request: LeaseWriteEpoch) -> WriteLease:
        lease_id = _checked_name("lease", request.lease_id)
        async with self._turn:
            now_ms = self._clock.wall_ms()
            held = self._leases.get(lease_id)
            if held is not None and held[0] < self._epochs.floor:
                await self._forget([lease_id])
                raise LeaseEnded(
                    f"the lease {lease_id} ran out, and what was uploaded under it may have been swept",
                    help="Run the job again. Were its processes paused, or cut off from the control plane?",
                )
            if held is not None and now_ms - held[1] > LEASE_LIFE_MS_MAX:
                raise LeaseEnded(
                    f"the lease {lease_id} is a day old", help="Write in smaller batches: each has a lease of its own."
                )
            if held is None and len(self._leases) >= LEASES_MAX:
                await self._forget_expired(now_ms)
            if held is None and len(self._leases) >= LEASES_MAX:
                raise ControlUnavailable(
                    f"{len(self._leases)} leases are held", help="Do writers end without committing?"
                )
            epoch, granted_ms = (held[0], held[1]) if held is not None else (self._epochs.current, now_ms)
            # A renewal that would gain little is not written: many processes share a lease.
            if held is None or held[2] - now_ms < self._lease_ms * 3 // 4:
                row = (lease_id, epoch, granted_ms, now_ms + self._lease_ms)
                await self._metadata.transact(lambda tx: _write_lease(tx, row))
                self._leases[lease_id] = row[1:]
            return WriteLease(self._epochs.current, self._leases[lease_id][2] - now_ms, self._store_url)

    async def commit(self, request: CommitObjects) -> CommittedObjects:
        writer_id = _checked_name("writer", request.writer_id)
        batch_id = request.batch_id
        if batch_id < 0:
            raise InvalidSetting(f"batch {batch_id} of {writer_id}", help="Batch numbers start at 0.")
        async with self._turn:
            known = await self._metadata.read(lambda tx: _read_batch(tx, writer_id, batch_id))
            if isinstance(known, bytes):
                await self._forget([request.lease_id])
                return CommittedObjects(0, _decode_verdicts(known), repeated=True)
            if known is not None:
                message = f"{writer_id} has committed batch {known} already, and comes now with batch {batch_id}"
                return CommittedObjects(int(ErrorCode.INVALID_REQUEST), [], error_message=message)
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
        """Forget leases that ran out, and writers that were not heard of for long."""
        async with self._turn:
            now_ms = self._clock.wall_ms()
            await self._forget_expired(now_ms)
        before_ms = now_ms - self._expiration_ms
        while True:
            async with self._turn:
                if not await self._metadata.transact(lambda tx: _delete_batches(tx, before_ms)):
                    return

    async def _forget_expired(self, now_ms: int) -> None:
        await self._forget([lease_id for lease_id, held in self._leases.items() if held[2] <= now_ms])

    async def _forget(self, lease_ids: list[str]) -> None:
        gone = [lease_id for lease_id in lease_ids if lease_id in self._leases]
        if not gone:
            return
        rows = [(lease_id,) for lease_id in gone]
        await self._metadata.transact(lambda tx: tx.executemany("DELETE FROM write_leases WHERE lease_id = ?", rows))
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
    """What the batch was answered; or the newest batch, where that is a later one; or None: it is new."""
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
    """A writer's batches go together, with the newest: as long as that is there, the order can be told."""
    rows = tx.query(
        "SELECT writer_id FROM writer_batches GROUP BY writer_id HAVING MAX(committed_ms) < ? LIMIT ?",
        (before_ms, _EXPIRED_PER_TRANSACTION),
    )
    tx.executemany("DELETE FROM writer_batches WHERE writer_id = ?", rows)
    return len(rows)
