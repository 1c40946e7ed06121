"""The log of deltas, and the snapshots, as objects in the store."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import structlog

from braidlog.control.metadata.deltas import (
    DELTA_PREFIX,
    SNAPSHOT_PREFIX,
    Delta,
    Position,
    behind,
    counts,
    decode_delta,
    delta_key,
    encode_delta,
    snapshot_key,
)
from braidlog.control.metadata.store import MetadataError
from braidlog.objects.store import AlreadyExists, Bytes, NotFound, Store, StoreError, StoreFull, StoreTimeout
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import Fenced, Remedy

_log = structlog.get_logger(__name__)

LATE_S = 60.0
"""A slower answer proves nothing by itself: others may have gone on and trimmed the log."""
TRIM_AFTER_S = 3_600.0
"""Keep deltas at least this long after they were seen. It is much longer than `LATE_S`."""
HUNG_S = 1.0
"""After this time without an answer, a put is sent again beside the first."""
PUTS_MAX = 3
_READ_AHEAD = 16
_RETRY_S = 0.5


class Superseded(Fenced):
    """Another holder's delta has the number, and counts."""

    def __init__(self, found: Delta) -> None:
        super().__init__(
            f"{found.holder} has taken over the metadata with fencing epoch {found.fencing_epoch}",
            help="Stop this control plane: the other one goes on.",
        )
        self.found = found


class LogTrimmed(MetadataError):
    """The log begins behind the position, so a snapshot must replace the image."""

    remedy = Remedy.REFRESH


class DeltaLog:
    """Appends, reads and deletes deltas, whatever they change."""

    def __init__(self, store: Store, clock: Clock, entropy: Entropy) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy

    async def append(self, delta: Delta, nonce: bytes, position: Position, known_s: float) -> Position:
        """Store a delta behind `position` and return the position behind it.

        `known_s` is a time at which nothing behind `position` was deleted yet. Raises `Superseded` if another delta
        counts there, and `MetadataError` if nothing was stored. As long as the outcome is unknown, it tries again: only
        the same bytes at the same number can settle it.
        """
        before = position
        if self._clock.boot_s() - known_s > LATE_S:
            # A number that is free now may have been used and deleted. Nothing may be stored there then.
            known_s = self._clock.boot_s()
            await self._check_not_trimmed(before)
        while True:
            found = await self._create(delta.number, encode_delta(delta, nonce))
            if found is None:
                break
            other, other_nonce = decode_delta(found, delta.number)
            if counts(other, position):
                raise Superseded(other)
            position = behind(other, other_nonce, position)  # void: a late delta of a deposed writer
            delta = msgspec.structs.replace(delta, number=position.number + 1)
        if self._clock.boot_s() - known_s > LATE_S:
            await self._check_not_trimmed(before)
        return behind(delta, nonce, position)

    async def _create(self, number: int, data: bytes) -> Bytes | None:
        """Create the object, or return the content of the one that is there."""
        key = delta_key(number)
        is_known = True
        while True:
            try:
                await self._put(key, data)
                return None
            except AlreadyExists:
                found = await self._read_surely(key)
                return None if found == data else found
            except StoreError as error:
                is_known = is_known and error.remedy is not Remedy.CHECK_OUTCOME
                if is_known:
                    raise as_metadata_error(key, error) from error
                _log.warning("nobody knows whether the metadata was stored, trying again", key=key, error=str(error))
            await self._clock.sleep(self._entropy.uniform(_RETRY_S / 2, _RETRY_S))

    async def _put(self, key: str, data: bytes) -> None:
        """Put a delta, and put it again beside a put that hangs.

        Standbys take a holder for dead that stores nothing for a few seconds. Whichever put is the first to succeed
        counts: both have the same bytes. An error counts only when no put is left that may still succeed.
        """
        puts = {asyncio.ensure_future(self._store.put(key, data))}
        sent_count = 1
        error: BaseException | None = None
        try:
            while puts:
                pause = asyncio.ensure_future(self._clock.sleep(HUNG_S))
                try:
                    done, _ = await asyncio.wait({*puts, pause}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    pause.cancel()
                for put in done & puts:
                    puts.discard(put)
                    if put.exception() is None:
                        return
                    # That it exists already may be the other put's doing, and decides everything.
                    if error is None or isinstance(put.exception(), AlreadyExists):
                        error = put.exception()
                if isinstance(error, AlreadyExists):
                    break
                if puts and pause in done and sent_count < PUTS_MAX:
                    puts.add(asyncio.ensure_future(self._store.put(key, data)))
                    sent_count += 1
        finally:
            for put in puts:
                put.cancel()
            if puts:
                await asyncio.wait(puts)
        assert error is not None
        if sent_count > 1 and not isinstance(error, AlreadyExists):
            raise StoreTimeout(f"{key}: {sent_count} puts failed or got no answer ({error})") from error
        raise error

    async def _read_surely(self, key: str) -> Bytes:
        """Read a delta that is known to exist, however long that takes.

        Its content decides whether ours can be stored.
        """
        while True:
            try:
                return (await self._store.get(key)).data
            except NotFound:
                raise Fenced(
                    f"{key} was there and is gone: another control plane has gone on and trimmed the log",
                    help="Stop this control plane.",
                ) from None
            except StoreError as error:
                _log.warning("the metadata cannot be read, trying again", key=key, error=str(error))
            await self._clock.sleep(self._entropy.uniform(_RETRY_S / 2, _RETRY_S))

    async def _check_not_trimmed(self, position: Position) -> None:
        """Raise `Fenced` if deltas behind `position` may have been deleted.

        Deltas are deleted in order. While the one at `position` exists, all behind it do.
        """
        if not await self.is_behind_end(position):
            raise Fenced(
                "nothing was stored for so long that others have gone on with the metadata",
                help="Start this control plane again.",
            )

    async def is_behind_end(self, position: Position) -> bool:
        """Whether the delta at `position` exists, so that none behind it was deleted."""
        try:
            if position.counted_number == 0:
                return await self.read(1) is not None or not await self.snapshots()
            _, nonce = decode_delta(
                (await self._store.get(delta_key(position.counted_number))).data, position.counted_number
            )
        except NotFound:
            return False
        except StoreError as error:
            raise as_metadata_error(DELTA_PREFIX, error) from error
        return nonce == position.nonce

    async def read(self, number: int) -> tuple[Delta, bytes] | None:
        """Return the delta with that number and its nonce, or None if there is none."""
        key = delta_key(number)
        try:
            blob = await self._store.get(key)
        except NotFound:
            return None
        except StoreError as error:
            raise as_metadata_error(key, error) from error
        return decode_delta(blob.data, number)

    async def read_behind(self, position: Position) -> AsyncIterator[tuple[Delta, Position]]:
        """Yield the deltas behind `position` that count, and the position behind each."""
        ahead = 1  # mostly there is nothing, and each look costs a request
        while True:
            start = position.number + 1
            for found in await asyncio.gather(*(self.read(number) for number in range(start, start + ahead))):
                if found is None:
                    return
                delta, nonce = found
                is_counted = counts(delta, position)
                position = behind(delta, nonce, position)
                if is_counted:
                    yield delta, position
            ahead = min(2 * ahead, _READ_AHEAD)

    # ── snapshots ──

    async def snapshots(self) -> list[int]:
        """Return the numbers of the deltas that have a snapshot, in order."""
        return [number for number, _ in await self.dated_snapshots()]

    async def dated_snapshots(self) -> list[tuple[int, int]]:
        """Return the snapshots' numbers, in order, each with the store's time of it."""
        numbers: list[tuple[int, int]] = []
        after = None
        try:
            while True:
                page = await self._store.list(SNAPSHOT_PREFIX, after=after)
                names = [(found.key.removeprefix(SNAPSHOT_PREFIX), found.modified_ms) for found in page.objects]
                numbers += [(int(name), at_ms) for name, at_ms in names if name.isdecimal()]  # skip objects of others
                if page.next_after is None:
                    return numbers
                after = page.next_after
        except StoreError as error:
            raise as_metadata_error(SNAPSHOT_PREFIX, error) from error

    async def read_snapshot(self, number: int) -> Bytes:
        key = snapshot_key(number)
        try:
            return (await self._store.get(key)).data
        except StoreError as error:
            raise as_metadata_error(key, error) from error

    async def write_snapshot(self, number: int, data: bytes) -> None:
        key = snapshot_key(number)
        try:
            await self._store.put(key, data)
        except AlreadyExists:
            pass  # a snapshot of the same delta has the same content
        except StoreError as error:
            raise as_metadata_error(key, error) from error

    async def trim(self, end: int) -> None:
        """Delete snapshots, then deltas, with numbers below `end`, one by one.

        The oldest go first. Other code relies on it: while a delta exists, none behind it was deleted.
        """
        try:
            for number in await self.snapshots():
                if number < end:
                    await self._store.delete([snapshot_key(number)])
            while True:
                page = await self._store.list(DELTA_PREFIX)
                keys = [found.key for found in page.objects if found.key < delta_key(end)]
                if not keys:
                    return
                for key in keys:
                    await self._store.delete([key])
        except StoreError as error:
            raise as_metadata_error(DELTA_PREFIX, error) from error


def as_metadata_error(key: str, error: StoreError) -> MetadataError:
    """Return the error for a read, or for a write that stored nothing.

    The same call may succeed later, unless settings are wrong.
    """
    help_line = error.help or "Is the store reachable? `braid doctor` looks closer."
    if isinstance(error, StoreFull):
        help_line = "Free space in the store that holds the metadata."
    wrapped = MetadataError(f"{key}: {error}", help=help_line)
    if error.remedy is Remedy.FIX_INPUT:
        wrapped.remedy = Remedy.FIX_INPUT
    return wrapped
