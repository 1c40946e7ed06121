"""Packs the rows that a node's tasks have left at their end together.

It makes batches of them.

A run is what one task hands over for one zone. Runs of several tasks become one batch, in which each task has extents
of its own. A task's notifications name only its own rows, so they are as good as if the task had written the batch
itself, whatever happens to the other tasks. A batch is closed when it is full, when all present tasks wait for it and
no other is likely to come, and at the latest a moment after its first run.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, Remedy
from braidlog.runtime.tasks import TaskGroup
from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.batcher import BatcherSettings, BatchPacker, BatchWriter
from braidlog.spark.shuffle.buffers import OBJECT_ROOM_BYTES, RATIO_MIN, Chunk
from braidlog.spark.shuffle.notification import Notification

WAIT_S_MAX = 1.0
"""How long a finished task waits for others to fill its batch. Its slot is idle meanwhile."""
GRACE_S = 0.2
"""How long waiting tasks wait for another task that may start in a free slot."""
HELD_BYTES_MAX = 512 * 1024 * 1024
"""The limit on the bytes of all runs. A task whose runs do not fit writes them itself."""


class NearWriter(BatchWriter, Protocol):
    """Writes batches for the node's own zone, and keeps them."""

    name: str
    """The node's name, which the keys of these batches carry."""


class TooMuchHeld(BraidError):
    """Raised when there is no room for a task's runs."""

    remedy = Remedy.RETRY


class _WireRun(msgspec.Struct, array_like=True, frozen=True):
    zone: str
    size_bytes: int
    partitions: bytes
    bounds: bytes
    rows: memoryview


_encode_runs = msgspec.msgpack.Encoder().encode
_decode_runs = msgspec.msgpack.Decoder(list[_WireRun]).decode
_encode_notifications = msgspec.msgpack.Encoder().encode
_decode_notifications = msgspec.msgpack.Decoder(list[Notification]).decode


def encode_runs(runs: Mapping[str, Sequence[Chunk]]) -> bytes:
    """Encode the chunks of each zone as a message."""
    found = []
    for zone, chunks in runs.items():
        for chunk in chunks:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, chunk.rows.schema) as writer:
                writer.write_batch(chunk.rows)
            found.append(
                _WireRun(
                    zone,
                    chunk.size_bytes,
                    chunk.partitions.tobytes(),
                    chunk.bounds.tobytes(),
                    memoryview(sink.getvalue()),
                )
            )
    return _encode_runs(found)


def decode_runs(message: bytes) -> list[tuple[str, Chunk]]:
    found = []
    for run in _decode_runs(message):
        with pa.ipc.open_stream(pa.py_buffer(run.rows)) as stream:
            rows = stream.read_next_batch()
        partitions, bounds = (np.frombuffer(each, dtype=np.int64) for each in (run.partitions, run.bounds))
        found.append((run.zone, Chunk(rows, partitions, bounds, run.size_bytes)))
    return found


def encode_notifications(notifications: Sequence[Notification]) -> bytes:
    return _encode_notifications(list(notifications))


def decode_notifications(message: bytes) -> list[Notification]:
    return _decode_notifications(message)


@dataclass(eq=False, slots=True)
class _Ticket:
    """The runs of one task that waits for them to be stored."""

    done: asyncio.Future[list[Notification]]
    pieces: int = 0
    """How many of its chunks are not in the store yet."""
    notifications: list[Notification] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Buffer:
    """The chunks for one zone, in the order of their arrival."""

    pieces: deque[tuple[_Ticket, Chunk]] = field(default_factory=deque)
    size_bytes: int = 0
    ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class SharingStatistics:
    tasks: int
    """Tasks that are present now."""
    runs: int
    batches: int
    stored_bytes: int
    held_bytes: int


class SharedBuffers:
    """Packs runs of several tasks together.

    Tasks `join`, `share` once, and `leave`. Use from one event loop.
    """

    def __init__(
        self,
        store: BatchWriter,
        settings: BatcherSettings,
        *,
        clock: Clock,
        entropy: Entropy,
        wait_s_max: float = WAIT_S_MAX,
        held_bytes_max: int = HELD_BYTES_MAX,
        slots: Callable[[], int] = lambda: 0,
        near: NearWriter | None = None,
    ) -> None:
        """`slots` returns how many tasks may be present at the same time.

        `near` writes the batches of the node's own zone.
        """
        self._near = near
        self._task_slots = slots
        self._store = store
        self._settings = settings
        self._packer = BatchPacker(settings, clock=clock, entropy=entropy)
        self._wait_s_max = min(wait_s_max, settings.interval_s)
        self._held_bytes_max = held_bytes_max
        self._joined: dict[str, None] = {}
        self._waiting: dict[str, _Ticket] = {}
        self._buffers: dict[tuple[str, bytes], _Buffer] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._slots = asyncio.Semaphore(settings.uploads_in_flight_max)
        self._uploads = TaskGroup("shared uploads", errors_are_awaited=True)
        self._held_bytes = self._runs = self._batches = self._stored_bytes = 0

    @property
    def is_idle(self) -> bool:
        return not self._joined and not self._held_bytes and not len(self._uploads)

    def join(self, task: str) -> None:
        """Register a task that will share its last rows, or leave."""
        self._joined[task] = None
        self._stop_grace()

    def leave(self, task: str) -> None:
        if self._joined.pop(task, self) is not self:
            self._close_if_all_wait()

    async def share(self, task: str, runs: Sequence[tuple[str, Chunk]], *, is_last: bool = True) -> list[Notification]:
        """Store these runs and return the notifications of exactly these rows.

        A task that has given its last ones waits for nothing else, so its batches are closed when all tasks wait.
        """
        size_bytes = sum(chunk.size_bytes for _, chunk in runs)
        if self._held_bytes + size_bytes > self._held_bytes_max:
            raise TooMuchHeld(f"{self._held_bytes} bytes of runs are waiting already")
        if not runs:
            return []
        ticket = _Ticket(asyncio.get_running_loop().create_future())
        self._held_bytes += size_bytes
        self._runs += len(runs)
        if is_last:
            self._waiting[task] = ticket
        try:
            for zone, chunk in runs:
                key = (zone, chunk.rows.schema.serialize().to_pybytes())
                buffer = self._buffers.setdefault(key, _Buffer())
                buffer.pieces.append((ticket, chunk))
                buffer.size_bytes += chunk.size_bytes
                ticket.pieces += 1
                while buffer.size_bytes * buffer.ratio >= self._settings.batch_bytes:
                    self._close(key)
            self._close_if_all_wait()
            if self._timer is None and any(buffer.pieces for buffer in self._buffers.values()):
                self._timer = asyncio.get_running_loop().call_later(self._wait_s_max, self._close_all)
            return await ticket.done
        finally:
            if is_last:
                del self._waiting[task]
            self._held_bytes -= size_bytes
            self._forget(ticket)

    def _forget(self, ticket: _Ticket) -> None:
        """Drop the chunks of a task that does not wait any more."""
        for buffer in self._buffers.values():
            if any(owner is ticket for owner, _ in buffer.pieces):
                buffer.pieces = deque(each for each in buffer.pieces if each[0] is not ticket)
                buffer.size_bytes = sum(chunk.size_bytes for _, chunk in buffer.pieces)

    def _close_if_all_wait(self) -> None:
        if not all(task in self._waiting for task in self._joined):
            return
        if len(self._waiting) >= self._task_slots():
            self._close_all()
        elif self._grace is None and self._waiting:
            self._grace = asyncio.get_running_loop().call_later(GRACE_S, self._close_all)

    def _stop_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def _close_all(self) -> None:
        self._stop_grace()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key in list(self._buffers):
            buffer = self._buffers[key]
            while buffer.pieces:
                self._close(key)
            del self._buffers[key]

    def _close(self, key: tuple[str, bytes]) -> None:
        """Start to upload one batch of about the usual size, or of all that there is."""
        buffer = self._buffers[key]
        wanted_bytes = min(self._settings.batch_bytes / buffer.ratio, OBJECT_ROOM_BYTES)
        taken: list[tuple[_Ticket, Chunk]] = []
        taken_bytes = 0
        while buffer.pieces and (not taken or taken_bytes < wanted_bytes):
            ticket, chunk = buffer.pieces.popleft()
            row = int((wanted_bytes - taken_bytes) / chunk.size_bytes * chunk.rows.num_rows)
            if 0 < row < chunk.rows.num_rows:
                chunk, rest = chunk.cut(row)
                buffer.pieces.appendleft((ticket, rest))
                ticket.pieces += 1
            taken.append((ticket, chunk))
            taken_bytes += chunk.size_bytes
        buffer.size_bytes -= taken_bytes
        near = self._near if key[0] == self._settings.zone else None
        self._uploads.spawn(self._upload(buffer, taken, near))

    async def _upload(self, buffer: _Buffer, taken: Sequence[tuple[_Ticket, Chunk]], near: NearWriter | None) -> None:
        tickets = list(dict.fromkeys(ticket for ticket, _ in taken))
        try:
            async with self._slots:
                packed = self._packer.pack(
                    [chunk for _, chunk in taken],
                    owners=[tickets.index(ticket) for ticket, _ in taken],
                    node=near.name if near is not None else "",
                )
                buffer.ratio = min(1.0, max(RATIO_MIN, len(packed.data) / packed.rows_bytes))
                await (near or self._store).put(packed.key, packed.data)
        except Exception as error:  # noqa: BLE001 - every waiting task must get the error
            for ticket in tickets:
                if not ticket.done.done():
                    ticket.done.set_exception(_failure(error))
            return
        self._batches += 1
        self._stored_bytes += len(packed.data)
        for owner, notification in zip(packed.owners, packed.notifications, strict=True):
            tickets[owner].notifications.append(notification)
        for ticket, _ in taken:
            ticket.pieces -= 1
        for ticket in tickets:
            if ticket.pieces == 0 and not ticket.done.done():
                ticket.done.set_result(ticket.notifications)

    def statistics(self) -> SharingStatistics:
        return SharingStatistics(len(self._joined), self._runs, self._batches, self._stored_bytes, self._held_bytes)

    async def close(self) -> None:
        self._stop_grace()
        if self._timer is not None:
            self._timer.cancel()
        await self._uploads.cancel_all()


def _failure(error: Exception) -> JobError:
    failure = JobError(f"a batch could not be uploaded: {error}")
    failure.__cause__ = error
    return failure
