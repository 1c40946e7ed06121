"""The copy of the metadata in the bucket, as objects: snapshots and increments."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from braidlog.control.metadata.delta_log import as_metadata_error
from braidlog.control.metadata.increments import (
    COPY_PREFIX,
    RESTORES_PREFIX,
    Increment,
    copy_snapshot_key,
    decode_increment,
    increment_key,
    increments_prefix,
    restore_key,
    snapshots_prefix,
)
from braidlog.objects.store import AlreadyExists, Bytes, NotFound, Store, StoreError
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import Remedy

_RETRY_S = 0.5
_FOLDER_END = "/￿"


@dataclass(frozen=True, slots=True)
class CopyObjects:
    """The numbers of the objects that one copy has, in order."""

    snapshots: list[int]
    increments: list[int]

    @property
    def next_number(self) -> int:
        """The number of the next increment."""
        return max([*(number + 1 for number in self.increments[-1:]), *self.snapshots[-1:], 1])


class CopyLog:
    """Reads and writes the copies and the restores of one store."""

    def __init__(self, store: Store, clock: Clock, entropy: Entropy) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy

    # ── restores ──

    async def is_replaced(self, restore: int) -> bool:
        """Whether a later restore has replaced the metadata that this one made."""
        try:
            await self._store.head(restore_key(restore + 1))
            return True
        except NotFound:
            return False
        except StoreError as error:
            raise as_metadata_error(RESTORES_PREFIX, error) from error

    async def newest_restore(self) -> int:
        """Return the number of the newest restore; 0: there was none."""
        return max(await self._numbers(RESTORES_PREFIX), default=0)

    async def claim_restore(self, restore: int, note: bytes) -> None:
        """Claim a number for a restore. Raises `AlreadyExists` if another one has it."""
        await self._store.put(restore_key(restore), note)

    # ── what is there ──

    async def folders(self) -> list[int]:
        """Return the restore numbers that have a copy, in order."""
        found: list[int] = []
        after: str | None = None
        try:
            while True:
                page = await self._store.list(COPY_PREFIX, after=after, limit=1)
                if not page.objects:
                    return found
                name = page.objects[0].key.removeprefix(COPY_PREFIX).split("/")[0]
                if name.isdecimal():
                    found.append(int(name))
                after = f"{COPY_PREFIX}{name}{_FOLDER_END}"
        except StoreError as error:
            raise as_metadata_error(COPY_PREFIX, error) from error

    async def objects(self, restore: int) -> CopyObjects:
        return CopyObjects(
            await self._numbers(snapshots_prefix(restore)), await self._numbers(increments_prefix(restore))
        )

    async def _numbers(self, prefix: str) -> list[int]:
        numbers: list[int] = []
        after: str | None = None
        try:
            while True:
                page = await self._store.list(prefix, after=after)
                names = [found.key.removeprefix(prefix) for found in page.objects]
                numbers += [int(name) for name in names if name.isdecimal()]  # skip objects of others
                after = page.next_after
                if after is None:
                    return numbers
        except StoreError as error:
            raise as_metadata_error(prefix, error) from error

    # ── reading ──

    async def read_snapshot(self, restore: int, number: int) -> Bytes:
        return await self._read(copy_snapshot_key(restore, number))

    async def read_increment(self, restore: int, number: int) -> Increment:
        key = increment_key(restore, number)
        return decode_increment(await self._read(key), key)

    async def read_increments(self, restore: int, start: int) -> AsyncIterator[Increment]:
        """Yield the increments from number `start` on."""
        for number in (await self.objects(restore)).increments:
            if number >= start:
                yield await self.read_increment(restore, number)

    async def _read(self, key: str) -> Bytes:
        try:
            return (await self._store.get(key)).data
        except StoreError as error:
            raise as_metadata_error(key, error) from error

    # ── writing ──

    async def write(self, key: str, data: bytes) -> bool:
        """Create an object. Returns False if the key has other content.

        If the outcome is unknown, it tries again with the same bytes: only they can settle it.
        """
        while True:
            try:
                await self._store.put(key, data)
                return True
            except AlreadyExists:
                return bytes(await self._read(key)) == data
            except StoreError as error:
                if error.remedy is not Remedy.CHECK_OUTCOME:
                    raise as_metadata_error(key, error) from error
            await self._clock.sleep(self._entropy.uniform(_RETRY_S / 2, _RETRY_S))

    async def trim(self, restore: int, end: int) -> None:
        """Delete all snapshots and increments below number `end`, and older copies.

        The oldest go first, and snapshots before increments.
        """
        try:
            for folder in await self.folders():
                if folder > restore:
                    break
                found = await self.objects(folder)
                is_old = folder < restore
                snapshots = [number for number in found.snapshots if is_old or number < end]
                increments = [number for number in found.increments if is_old or number < end]
                keys = [copy_snapshot_key(folder, number) for number in snapshots]
                keys += [increment_key(folder, number) for number in increments]
                for start in range(0, len(keys), 500):
                    await self._store.delete(keys[start : start + 500])
        except StoreError as error:
            raise as_metadata_error(COPY_PREFIX, error) from error
