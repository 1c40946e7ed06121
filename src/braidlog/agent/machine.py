"""What this machine gives an agent's shards: anonymous shared memory, locks and doorbells. The kernel takes all of it
back by itself when the last process that holds it is gone."""

import asyncio
import fcntl
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from braidlog.scheduling.policy import policy_named
from braidlog.writing.board import Board, BoardShape


@dataclass(frozen=True, slots=True)
class Machine:
    """Open file descriptors: children inherit them under the same numbers."""

    memory_fd: int
    bell_fds: tuple[int, ...]
    shape: BoardShape

    @classmethod
    def create(cls, shape: BoardShape, policy: str) -> "Machine":
        memory_fd = os.memfd_create("braidlog-shards")
        os.ftruncate(memory_fd, shape.size_bytes)
        bell_fds = tuple(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(shape.shard_count))
        machine = cls(memory_fd, bell_fds, shape)
        machine.map_board().set_groups(policy_named(policy).first_groups(shape.shard_count))
        return machine

    def map_board(self) -> Board:
        # The mapping lives as long as the board's views of it.
        return Board(memoryview(mmap.mmap(self.memory_fd, self.shape.size_bytes)), self.shape)

    @property
    def fds(self) -> tuple[int, ...]:
        return (self.memory_fd, *self.bell_fds)

    def ring(self, shards: Sequence[int]) -> None:
        for shard in shards:
            try:
                os.eventfd_write(self.bell_fds[shard], 1)
            except BlockingIOError:
                pass  # it has been rung 2**64 times, and will hear one of them

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


class ProcessSeat:
    """A shard that is a process of its own."""

    def __init__(self, machine: Machine, shard: int) -> None:
        self._machine = machine
        self.shard = shard
        self.board = machine.map_board()

    def try_lock(self, group: int) -> bool:
        return self._machine.try_lock(group)

    def unlock(self, group: int) -> None:
        self._machine.unlock(group)

    def ring(self, shard: int) -> None:
        self._machine.ring([shard])

    def listen(self, heard: Callable[[], None]) -> None:
        bell_fd = self._machine.bell_fds[self.shard]

        def answer() -> None:
            try:
                os.eventfd_read(bell_fd)
            except BlockingIOError:
                return
            heard()

        asyncio.get_running_loop().add_reader(bell_fd, answer)
