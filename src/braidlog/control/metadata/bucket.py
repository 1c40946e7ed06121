"""The metadata in the bucket, with a SQLite file as its image.

Every transaction runs in the image and is then stored in a delta, which makes it count. Transactions that run while a
delta is on its way share the next one. If the machine is lost, nothing else is: another process makes the image again
from the newest snapshot and the deltas behind it, and takes over by creating the next delta.
"""

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import structlog

from braidlog.control.metadata.connection import SqliteTransaction, newest_schema
from braidlog.control.metadata.delta_log import LATE_S, DeltaLog, LogTrimmed, Superseded
from braidlog.control.metadata.deltas import NONCE_BYTES, Delta, DeltaKind, Position, behind, counts
from braidlog.control.metadata.image import Cut, Image, load_snapshot, remove_image
from braidlog.control.metadata.progress import Progress
from braidlog.control.metadata.snapshots import Snapshots
from braidlog.control.metadata.store import (
    FOLLOW_INTERVAL_S,
    HEARTBEAT_S,
    MetadataBusy,
    MetadataDamaged,
    MetadataError,
    MetadataUnavailable,
    SchemaTooNew,
)
from braidlog.control.metadata.temporary import TemporaryFolder
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, Fenced, InvalidSetting
from braidlog.runtime.tasks import TaskGroup

T = TypeVar("T")

_log = structlog.get_logger(__name__)

VACANT_AFTER_S = 4.0
"""A holder that stores nothing for this long counts as dead. Leaves time for several heartbeats and retries."""
CALLS_AHEAD_MAX = 100
"""How many transactions may run before their delta is stored. Further ones wait."""
STORE_AGAIN_S = 0.5
"""How long to wait before a delta that the store refused is tried again."""
_APPLY_DELTAS_MAX = 200


class BucketMetadata:
    """Implements `MetadataStore`, with one delta on its way at a time.

    Writing and reading have a thread each.
    """

    def __init__(self, path: Path | None, store: Store, clock: Clock, entropy: Entropy, holder: str) -> None:
        """`path` is where the image stays from one start to the next; None keeps none."""
        self._folder = TemporaryFolder() if path is None else None
        self._path = path or (self._folder.path if self._folder is not None else Path()) / "image.db"
        self._deltas = DeltaLog(store, clock, entropy.fork("delta log"))
        self._clock = clock
        self._entropy = entropy
        self._holder = holder
        self._write_in = ThreadPoolExecutor(1, thread_name_prefix="metadata-write")
        self._read_in = ThreadPoolExecutor(1, thread_name_prefix="metadata-read")
        self._image: Image | None = None
        self._position = Position()
        self._known_s = -math.inf
        """A time at which nothing behind the position was deleted yet. Soon after it, a missing delta means the end."""
        self._epoch = 0
        self._wanted = asyncio.Event()
        self.progress = Progress()
        self._committer: asyncio.Task[None] | None = None
        self._in_flight: bytes = b""
        """The nonce of the delta that is on its way."""
        self._next_proof: asyncio.Task[None] | None = None
        self._proof: asyncio.Task[None] | None = None
        self._tasks = TaskGroup("metadata")
        self._proofs = TaskGroup("metadata proofs", errors_are_awaited=True)
        self._ended: Exception | None = None
        """The reason why calls are refused: another holder, or an image that cannot be trusted."""
        self.lost = asyncio.Event()
        self._snapshots = Snapshots(self._deltas, self._tasks)

    @classmethod
    async def open(
        cls, path: Path | None, store: Store, clock: Clock, entropy: Entropy, *, holder: str
    ) -> "BucketMetadata":
        """Open the image, and bring it up to date or make it anew."""
        metadata = cls(path, store, clock, entropy, holder)
        try:
            await metadata.load()
        except BaseException:
            await metadata.close()
            raise
        return metadata

    @property
    def fencing_epoch(self) -> int:
        return self._epoch

    @property
    def position(self) -> Position:
        """The newest delta that this process knows of."""
        return self._position

    @property
    def delta_number(self) -> int:
        return self._position.number

    # ── following ──

    async def load(self) -> None:
        """Bring the image up to date with the store. Call it before anything else."""
        image = await self._open_image()
        position = await self._position_of(image)
        if position == Position() or not await self._deltas.is_behind_end(position):
            await self._rebuild()
        else:
            self._moved_to(position, -math.inf)
        try:
            await self._catch_up()
        except (LogTrimmed, MetadataDamaged) as error:
            _log.warning("the image of the metadata is made again", reason=str(error))
            await self._rebuild()
            await self._catch_up()
        self._snapshots.deltas_behind = self._position.number  # may be too many: then a snapshot soon follows a restart
        if self._position.number == 0:
            await self._run(self._write_in, self._current_image().prepare_empty)

    async def _open_image(self) -> Image:
        """Open the image file, or start over if it is damaged."""

        def opened() -> Image:
            try:
                image = Image(self._path)
                if image.position == Position() and image.is_metadata_itself:
                    image.close()
                    raise InvalidSetting(
                        f"{self._path} is not an image: it holds the metadata of another control plane",
                        help=f"Use sqlite://{self._path} to go on with it, or another path for an image.",
                    )
            except MetadataDamaged:
                remove_image(self._path)
                image = Image(self._path)
            return image

        self._image = await self._run(self._write_in, opened)
        return self._image

    async def _position_of(self, image: Image) -> Position:
        return await self._run(self._write_in, lambda: image.position)

    async def _rebuild(self) -> None:
        """Make the image from the newest snapshot that can be read."""
        await self._close_image()
        damage: MetadataDamaged | None = None
        numbers = await self._deltas.snapshots()
        for number in reversed(numbers):
            data = await self._deltas.read_snapshot(number)
            try:
                await self._run(self._write_in, load_snapshot, data, self._path)
            except MetadataDamaged as error:
                _log.error("a snapshot of the metadata is damaged", number=number, reason=str(error))
                damage = error
                continue
            self._moved_to(await self._position_of(await self._open_image()), -math.inf)
            return
        if damage is not None and await self._deltas.read(1) is None:
            raise damage
        await self._run(self._write_in, remove_image, self._path)
        await self._open_image()
        self._moved_to(Position(), -math.inf)

    async def _catch_up(self) -> None:
        """Apply all deltas that others have stored."""
        while True:
            looked_s = self._clock.boot_s()
            deltas: list[tuple[Delta, Position]] = []
            async for delta, position in self._deltas.read_behind(self._position):
                deltas.append((delta, position))
                if len(deltas) >= _APPLY_DELTAS_MAX:
                    break
            # This process may have slept. Then neither a delta nor its absence proves anything: others may have gone on
            # and deleted deltas. They have not as long as the delta at the position exists.
            if self._clock.boot_s() - self._known_s > LATE_S and not await self._deltas.is_behind_end(self._position):
                raise LogTrimmed("the log of the metadata has moved on", help="Start again: a snapshot has the rest.")
            self._known_s = looked_s
            if not deltas:
                return
            await self._run(self._write_in, self._current_image().apply, deltas)
            for delta, position in deltas:
                self._snapshots.count(delta)
                self._moved_to(position, looked_s)
            if len(deltas) < _APPLY_DELTAS_MAX:
                return

    def _moved_to(self, position: Position, known_s: float) -> None:
        self._position = position
        self._known_s = known_s

    # ── holding ──

    async def wait_vacant(self, *, patient: bool, silent_s: float = VACANT_AFTER_S) -> None:
        """Return when the holder has resigned, or has stored nothing for `silent_s`.

        If somebody holds the metadata, raise `MetadataBusy`, or with `patient` follow the log until nobody does.
        """
        quiet_since_s = self._clock.boot_s()
        while not self._position.is_vacant:
            before = self._position
            looked_s = self._clock.boot_s()
            try:
                await self._follow()
            except (MetadataDamaged, SchemaTooNew):
                raise  # waiting does not help
            except MetadataError as error:
                # Without the store nobody can tell whether the holder is alive, but it can store nothing either.
                _log.warning("the log of the metadata cannot be read", error=str(error), help=error.help)
                quiet_since_s = self._clock.boot_s()
            if self._position.nonce != before.nonce:
                if not patient and not self._position.is_vacant:
                    raise MetadataBusy(
                        f"the metadata is in use by {self._position.holder}",
                        help="Stop that process, end it from here with --take-over, or wait for it with --standby.",
                    )
                quiet_since_s = self._clock.boot_s()
            elif looked_s - quiet_since_s >= silent_s:  # not the time now: it may have slept since
                _log.warning("the holder of the metadata is silent", holder=self._position.holder)
                return
            await self._clock.sleep(FOLLOW_INTERVAL_S)

    async def _follow(self) -> None:
        """Catch up, from a snapshot if the log no longer has all deltas."""
        if self._image is None:
            await self._rebuild()
        try:
            await self._catch_up()
        except LogTrimmed:
            await self._rebuild()
            await self._catch_up()

    async def acquire_fencing_epoch(self) -> int:
        """Create the next delta, so that the last holder finds its number taken.

        Raises `MetadataBusy` if another process has just taken over.
        """
        known_epoch = self._position.fencing_epoch
        while True:
            await self._catch_up()
            if self._position.fencing_epoch != known_epoch:
                raise MetadataBusy(f"{self._position.holder} has just taken over the metadata")
            delta = self._delta(DeltaKind.TAKE_OVER, self._position.fencing_epoch + 1)
            nonce = self._entropy.token(NONCE_BYTES)
            began_s = self._clock.boot_s()
            try:
                position = await self._deltas.append(delta, nonce, self._position, self._known_s)
            except Superseded:
                continue  # by the holder's last delta, or by another take-over: look again
            break
        self._epoch = delta.fencing_epoch
        await self._run(self._write_in, self._current_image().stamp, position, delta.schema_version)
        self._moved_to(position, began_s)
        self._committer = self._tasks.spawn(self._commit_groups())
        self._tasks.spawn(self._beat())
        return self._epoch

    def _delta(self, kind: DeltaKind, epoch: int, changes: bytes = b"") -> Delta:
        position = self._position
        schema = max(newest_schema(), position.schema_version)
        return Delta(position.number + 1, position.nonce, kind, epoch, schema, self._holder, changes)

    async def plan(self, fn: Callable[[SqliteTransaction], T]) -> T:
        self._check_may_plan()
        while self.progress.ahead >= CALLS_AHEAD_MAX:
            await self.progress.moved()
            self._check_may_plan()
        run: tuple[T, int] = await self._run(self._write_in, self._current_image().execute, fn)
        result, number = run
        self.progress.plan(number)
        self._wanted.set()
        return result

    def _check_may_plan(self) -> None:
        self._check_holds()
        if (failure := self.progress.failure) is not None:
            raise MetadataError(str(failure), help="Nothing of this call was kept. Is the store reachable?")

    async def durable(self) -> None:
        await self.progress.wait()

    async def transact(self, fn: Callable[[SqliteTransaction], T]) -> T:
        result = await self.plan(fn)
        await self.durable()
        return result

    async def _commit_groups(self) -> None:
        """Store what has run, one delta after the other."""
        while await self._wanted.wait() and self._ended is None:
            self._wanted.clear()
            cut: Cut | None = None
            try:
                cut = await self._run(self._write_in, self._current_image().cut, self._snapshots.is_due)
                position = await self._store(cut.changes)
            except Exception as error:  # noqa: BLE001 - whatever it is, nothing planned may be told of
                if cut is not None and cut.pinned is not None:
                    cut.pinned.close()
                self._end(error if isinstance(error, Fenced) else _untrusted(error))
                return
            self.progress.reach(cut.executed)
            if cut.pinned is not None:
                self._snapshots.make(cut.pinned, position)

    async def _store(self, changes: bytes) -> Position:
        """Store a delta, however often the store refuses it.

        What it holds is planned, and others have been planned on top of it. So it is never given up: the same bytes are
        tried again, until they count or another delta does.
        """
        delta, nonce = self._delta(DeltaKind.CHANGES, self._epoch, changes), self._entropy.token(NONCE_BYTES)
        self._in_flight = nonce
        while True:
            began_s = self._clock.boot_s()
            try:
                position = await self._deltas.append(delta, nonce, self._position, self._known_s)
            except (MetadataDamaged, SchemaTooNew):
                raise
            except MetadataError as error:
                _log.warning("the metadata cannot be stored, trying again", error=str(error), help=error.help)
                self.progress.fail(MetadataUnavailable(f"the metadata cannot be stored now ({error})", help=error.help))
                await self._clock.sleep(STORE_AGAIN_S)
                continue
            self._snapshots.count(delta)
            self._moved_to(position, began_s)
            return position

    async def _beat(self) -> None:
        """Store an empty delta now and then, to show that the holder is alive."""
        while self._ended is None:
            await self._clock.sleep(HEARTBEAT_S)
            await self._stamp()
            if self._clock.boot_s() - self._known_s >= HEARTBEAT_S / 2:
                self._wanted.set()

    async def _stamp(self) -> None:
        """Note in the image where it is, unless it is ahead of the log."""
        position, durable = self._position, self.progress.durable
        try:
            await self._run(self._write_in, self._current_image().stamp, position, position.schema_version, durable)
        except MetadataError as error:  # the image is only a cache
            _log.warning("the image of the metadata cannot be written", error=str(error), help=error.help)

    def _check_holds(self) -> None:
        if self._ended is not None:
            raise self._ended
        if self._epoch == 0:
            raise Fenced("this control plane does not hold the metadata", help="Acquire a fencing epoch first.")

    # ── reading ──

    async def read(self, fn: Callable[[SqliteTransaction], T]) -> T:
        self._check_holds()
        await self._prove()
        return await self._run(self._read_in, self._current_image().read, fn)

    async def peek(self, fn: Callable[[SqliteTransaction], T]) -> T:
        if self._epoch == 0:
            await self._catch_up()
        return await self._run(self._read_in, self._current_image().read, fn)

    async def export(self) -> bytes:
        """Return a snapshot of all that this process, which is not the holder, knows."""
        return await asyncio.to_thread(self._current_image().export)

    async def _prove(self) -> None:
        """Return once a look that began after this call shows that nobody took over."""
        if self._next_proof is None:
            self._next_proof = self._proofs.spawn(self._prove_behind(self._proof))
        await asyncio.shield(self._next_proof)

    async def _prove_behind(self, running: "asyncio.Task[None] | None") -> None:
        if running is not None:
            await asyncio.wait([running])
        self._proof, self._next_proof = self._next_proof, None
        first, known_s, sent_before = self._position, self._known_s, self._in_flight
        position, number = first, first.number + 1
        while (found := await self._deltas.read(number)) is not None:
            delta, nonce = found
            if counts(delta, position):
                if nonce != self._in_flight and number > self._position.number:
                    raise self._end(Superseded(delta))
                # It is our own. If it was sent before this look, it proves nothing: others may have gone on behind it.
                if nonce != sent_before:
                    break
                position = behind(delta, nonce, position)
            number += 1
        if self._clock.boot_s() - known_s > LATE_S and not await self._deltas.is_behind_end(first):
            raise self._end(Fenced("another control plane has gone on with the metadata", help="Stop this one."))

    def _end(self, error: Fenced) -> Fenced:
        """Refuse all further calls with this error."""
        self._ended = error
        self.progress.end(error)
        self._wanted.set()
        self.lost.set()
        return error

    # ── the end ──

    async def close(self) -> None:
        """Resign, so that another process may take over at once, and close the image."""
        await self._resign()
        self._ended = self._ended or Fenced("this control plane has stopped")
        await self._tasks.cancel_all()
        await self._proofs.cancel_all()
        self.progress.end(MetadataUnavailable("this control plane has stopped while it stored the metadata"))
        await self._close_image()
        self._write_in.shutdown(wait=False)
        self._read_in.shutdown(wait=False)
        if self._folder is not None:
            self._folder.close()

    async def _close_image(self) -> None:
        """Close the files, after reads that have begun are done."""
        image, self._image = self._image, None
        if image is not None:
            await self._run(self._read_in, lambda: None)
            await self._run(self._write_in, image.close)

    def let_go(self) -> None:
        """Close the image's files without resigning, as if the process had died."""
        if self._image is not None:
            self._image.close()
            self._image = None

    async def _resign(self) -> None:
        if self._committer is None or self._ended is not None:
            return
        try:
            async with asyncio.timeout(VACANT_AFTER_S):
                await self.durable()
                self._ended = Fenced("this control plane has stopped")
                self._wanted.set()
                await asyncio.wait([self._committer])
                await self._stamp()
                delta = self._delta(DeltaKind.RESIGN, self._epoch)
                await self._deltas.append(delta, self._entropy.token(NONCE_BYTES), self._position, self._known_s)
        except (MetadataError, Fenced, TimeoutError) as error:
            _log.warning("could not resign: the next holder waits until this one is taken for dead", error=str(error))

    def _current_image(self) -> Image:
        if self._image is None:
            raise MetadataError("the metadata is closed")
        return self._image

    async def _run(self, executor: Executor, fn: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, fn, *arguments)


def _untrusted(error: Exception) -> Fenced:
    help_line = error.help if isinstance(error, BraidError) else ""
    return Fenced(f"the metadata cannot be trusted ({error})", help=help_line or "Start this control plane again.")
