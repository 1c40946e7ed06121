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
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from braidlog.scheduling.policy import policy_named
from braidlog.scheduling.shard_groups import group_ids
from braidlog.writing.shards.board import Board, BoardShape
from braidlog.writing.shards.file_states import FileStates
from braidlog.writing.shards.link import ShardLinks

SUPERVISOR = -1
"""Stands for the process that started the shards, and is none itself."""
FILE_COUNT = 8192
"""How many of its latest journal files each shard tells the others of. Far more than may wait to be sequenced."""

_BOARDS = 2
_PAGE_BYTES = 4096
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
    """Open file descriptors: children inherit them under the same numbers.

    Classic and journaled requests have a board each, with its own locks and bells. The journal files' states follow.
    """

    memory_fd: int
    bells: tuple[Bell, ...]
    """Those of the classic board, by shard, and then those of the journal's."""
    shape: BoardShape

    @classmethod
    def create(cls, shape: BoardShape, policy: str) -> "Machine":
        bells = tuple(Bell.create() for _ in range(_BOARDS * shape.shard_count))
        machine = cls(_open_memory(_files_at(shape) + _files_bytes(shape)), bells, shape)
        links = machine.links(SUPERVISOR)
        for group in group_ids(policy_named(policy).first_groups(shape.shard_count)):
            if group:
                links.classic.board.set_starts_group(group, True)
                links.journal.board.set_starts_group(group, True)
        return machine

    def links(self, shard: int) -> ShardLinks:
        """Map the memory for one shard's process, or for the supervisor's."""
        # The mapping lives as long as the views of it.
        memory = memoryview(mmap.mmap(self.memory_fd, _files_at(self.shape) + _files_bytes(self.shape)))
        files = FileStates(memory[_files_at(self.shape) :], self.shape.shard_count, FILE_COUNT)
        boards = [Board(memory[number * _board_bytes(self.shape) :], self.shape) for number in range(_BOARDS)]
        classic, journal = (ProcessLink(self, shard, boards, number, files) for number in range(_BOARDS))
        return ShardLinks(classic, journal)

    @property
    def fds(self) -> tuple[int, ...]:
        return (self.memory_fd, *dict.fromkeys(fd for bell in self.bells for fd in bell))

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def _board_bytes(shape: BoardShape) -> int:
    return -(-shape.size_bytes // _PAGE_BYTES) * _PAGE_BYTES


def _files_at(shape: BoardShape) -> int:
    return _BOARDS * _board_bytes(shape)


def _files_bytes(shape: BoardShape) -> int:
    return FileStates.size_bytes(shape.shard_count, FILE_COUNT)


class ProcessLink:
    """A shard's link to the others on one of the boards, between processes."""

    def __init__(self, machine: Machine, shard: int, boards: list[Board], number: int, files: FileStates) -> None:
        shape = machine.shape
        self.shard = shard
        self.board: Board = boards[number]
        self.other_board: Board | None = boards[1 - number]
        self.files = files
        self._memory_fd = machine.memory_fd
        self._locks_at = number * shape.shard_count
        self._bells = machine.bells[self._locks_at : self._locks_at + shape.shard_count]

    def try_lock(self, group: int) -> bool:
        try:
            fcntl.lockf(self._memory_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._locks_at + group)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def unlock(self, group: int) -> None:
        fcntl.lockf(self._memory_fd, fcntl.LOCK_UN, 1, self._locks_at + group)

    def wake(self, shard: int) -> None:
        try:
            os.write(self._bells[shard].write_fd, _RING)
        except BlockingIOError:
            pass  # so many rings are unheard that there is no room for more; one of them will be heard

    def listen(self, woken: Callable[[], None]) -> None:
        bell_fd = self._bells[self.shard].read_fd

        def answer() -> None:
            try:
                os.read(bell_fd, _RINGS_BYTES)
            except BlockingIOError:
                return
            woken()

        asyncio.get_running_loop().add_reader(bell_fd, answer)
