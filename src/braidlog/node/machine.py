"""What the shards of an agent share: memory, locks and doorbells.

The memory has no name. The kernel takes all of it back when the last process that holds it is gone.

On Linux the memory is a memfd and a bell is an eventfd. Elsewhere the memory is a temporary file that is removed as
soon as it is open, and a bell is a pipe. Locks are record locks on the memory's descriptor, everywhere. A process loses
all its locks as soon as it closes any descriptor of the memory, a mapping's too, so it keeps these open to its end.
"""

import asyncio
import fcntl
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from braidlog.scheduling.policy import policy_named
from braidlog.scheduling.shard_groups import group_ids
from braidlog.writing.shards.board import Board, BoardShape

_RING = (1).to_bytes(8, sys.byteorder)
"""Counts as one ring for an eventfd; a pipe takes any bytes."""
_RINGS_BYTES = 4096
"""Bytes to read at a time. If there are more, the bell is heard again."""


class Bell(NamedTuple):
    """Two file descriptors: one to ring, and one to listen.

    Whoever rings writes to one, and whoever listens reads from the other.
    """

    read_fd: int
    write_fd: int

    @classmethod
    def create(cls) -> "Bell":
        if hasattr(os, "eventfd"):
            fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            return cls(fd, fd)
        bell = cls(*os.pipe())
        for fd in bell:
            os.set_blocking(fd, False)
        return bell


def _open_memory(size_bytes: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("braidlog-shards")
    else:
        fd, path = tempfile.mkstemp(prefix="braidlog-shards-")
        os.unlink(path)
    os.ftruncate(fd, size_bytes)
    return fd


@dataclass(frozen=True, slots=True)
class Machine:
    """Open file descriptors: children inherit them under the same numbers."""

    memory_fd: int
    bells: tuple[Bell, ...]
    shape: BoardShape

    @classmethod
    def create(cls, shape: BoardShape, policy: str) -> "Machine":
        bells = tuple(Bell.create() for _ in range(shape.shard_count))
        machine = cls(_open_memory(shape.size_bytes), bells, shape)
        board = machine.map_board()
        for group in group_ids(policy_named(policy).first_groups(shape.shard_count)):
            if group:
                board.set_starts_group(group, True)
        return machine

    def map_board(self) -> Board:
        # The mapping lives as long as the board's views of it.
        return Board(memoryview(mmap.mmap(self.memory_fd, self.shape.size_bytes)), self.shape)

    @property
    def fds(self) -> tuple[int, ...]:
        return (self.memory_fd, *dict.fromkeys(fd for bell in self.bells for fd in bell))

    def wake(self, shards: Sequence[int]) -> None:
        for shard in shards:
            try:
                os.write(self.bells[shard].write_fd, _RING)
            except BlockingIOError:
                pass  # so many rings are unheard that there is no room for more; one of them will be heard

    def try_lock(self, group: int) -> bool:
        try:
            fcntl.lockf(self.memory_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, group)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def unlock(self, group: int) -> None:
        fcntl.lockf(self.memory_fd, fcntl.LOCK_UN, 1, group)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


class ProcessLink:
    """The seat of a shard that runs as its own process."""

    def __init__(self, machine: Machine, shard: int) -> None:
        self._machine = machine
        self.shard = shard
        self.board = machine.map_board()

    def try_lock(self, group: int) -> bool:
        return self._machine.try_lock(group)

    def unlock(self, group: int) -> None:
        self._machine.unlock(group)

    def wake(self, shard: int) -> None:
        self._machine.wake([shard])

    def listen(self, woken: Callable[[], None]) -> None:
        bell_fd = self._machine.bells[self.shard].read_fd

        def answer() -> None:
            try:
                os.read(bell_fd, _RINGS_BYTES)
            except BlockingIOError:
                return
            woken()

        asyncio.get_running_loop().add_reader(bell_fd, answer)
