"""What the machine gives a shard so that it can work with the others: shared memory, locks and doorbells."""

from collections.abc import Callable
from typing import Protocol

from braidlog.writing.board import Board


class Seat(Protocol):
    """One shard's place at the table. Real shards are processes; simulated ones are tasks behind the same seam."""

    @property
    def shard(self) -> int: ...

    @property
    def board(self) -> Board: ...

    def try_lock(self, group: int) -> bool:
        """Take the group's lock, or return False at once. It falls when its holder dies."""
        ...

    def unlock(self, group: int) -> None: ...

    def ring(self, shard: int) -> None:
        """Wake another shard: something in the shared memory concerns it. Several rings may be heard as one."""
        ...

    def listen(self, heard: Callable[[], None]) -> None:
        """Call `heard` on the running event loop whenever somebody rings for this shard."""
        ...
