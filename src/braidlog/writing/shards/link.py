"""The link between the shards of an agent: memory, locks and wake-ups."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from braidlog.writing.shards.board import Board
from braidlog.writing.shards.file_states import FileStates


class Locks(Protocol):
    """One lock for each shard group, named after its first shard."""

    def try_lock(self, group: int) -> bool:
        """Take the group's lock, or return False at once.

        It is released when the process that has it dies.
        """
        ...

    def unlock(self, group: int) -> None: ...


class ShardLink(Locks, Protocol):
    """One shard's end of the link.

    Real shards are processes; simulated ones are tasks behind the same seam.
    """

    @property
    def shard(self) -> int: ...

    @property
    def board(self) -> Board: ...

    @property
    def other_board(self) -> Board | None:
        """The board of the other path, which spends the same budget."""
        ...

    @property
    def files(self) -> FileStates: ...

    def wake(self, shard: int) -> None:
        """Wake another shard, because something in the shared memory concerns it.

        Several calls may wake it once.
        """
        ...

    def listen(self, woken: Callable[[], None]) -> None:
        """Call `woken` on the running event loop whenever somebody wakes this shard."""
        ...


@dataclass(frozen=True, slots=True)
class ShardLinks:
    """One shard's links: one for classic and one for journaled requests.

    Both kinds have boards and groups of their own. So neither waits for the other, and each path has as many streams
    of uploads as its own load needs.
    """

    classic: ShardLink
    journal: ShardLink
