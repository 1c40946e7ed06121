"""The boards, locks and bells that the shards of a simulated agent share.

The boards are the real ones. A table also checks what no client can see: how long a group's lock is held, and which
process changes the groups.
"""

from collections.abc import Callable

from braidlog.runtime.entropy import Entropy
from braidlog.scheduling.policy import Adaptive
from braidlog.scheduling.regrouping import Merge, RegroupThresholds, Split, Standing
from braidlog.scheduling.shard_groups import buddy, group_ids, halves, members
from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.sim.virtual.process import Process
from braidlog.writing.shards.board import Board, BoardShape
from braidlog.writing.shards.file_states import FileStates
from braidlog.writing.shards.link import ShardLinks

RING_S_MAX = 0.001


FILE_COUNT = 64


class SimTables:
    """The tables of one agent: of its classic and of its journaled path.

    Both have the same states of journal files.
    """

    def __init__(self, loop: VirtualLoop, entropy: Entropy, shape: BoardShape) -> None:
        memory = memoryview(bytearray(FileStates.size_bytes(shape.shard_count, FILE_COUNT)))
        files = FileStates(memory, shape.shard_count, FILE_COUNT)
        self.classic = SimTable(loop, entropy.fork("classic"), shape, files)
        self.journal = SimTable(loop, entropy.fork("journal"), shape, files)

    def sit_down(self, shard: int, process: Process) -> ShardLinks:
        return ShardLinks(
            SimLink(self.classic, self.journal, shard, process), SimLink(self.journal, self.classic, shard, process)
        )

    def bury(self, shard: int) -> None:
        """Clean up after a shard that has died, as its supervisor does."""
        self.classic.bury(shard)
        self.journal.bury(shard)

    @property
    def troubles(self) -> list[str]:
        return [*self.classic.troubles, *self.journal.troubles]


class SimTable:
    def __init__(self, loop: VirtualLoop, entropy: Entropy, shape: BoardShape, files: FileStates) -> None:
        self.loop = loop
        self.entropy = entropy.fork("bells")
        self.files = files
        self.board = _WatchedBoard(self, shape)
        self.locks: dict[int, tuple[Process, float]] = {}
        """The process that holds each group's lock, and since when."""
        self.listeners: dict[int, tuple[Process, Callable[[], None]]] = {}
        self.troubles: list[str] = []

    def holder(self, group: int) -> Process | None:
        held = self.locks.get(group)
        return held[0] if held is not None and held[0].is_alive else None

    def bury(self, shard: int) -> None:
        self.board.bury(shard)
        for other in range(self.board.shard_count):
            self.wake(other)

    def wake(self, shard: int) -> None:
        listener = self.listeners.get(shard)
        if listener is not None and listener[0].is_alive:
            delay_s = self.entropy.uniform(0.0, RING_S_MAX)
            self.loop.call_later(delay_s, listener[1], context=listener[0].context)


class Restless(Adaptive):
    """Splits and merges groups at random, many times in a run."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def regroup(self, thresholds: RegroupThresholds, standing: Standing, shard: int) -> Split | Merge | None:
        groups = standing.groups
        entropy = self._entropy.fork(
            f"{shard} {standing.now_s}"
        )  # the same question at the same moment gets the same answer
        if groups[shard] != shard or entropy.below(4):
            return None
        parts = halves(groups, shard)
        other = buddy(groups, shard)
        if parts is not None and (other is None or other < shard or entropy.below(2)):
            return Split(shard, parts[1])
        return Merge(shard, members(groups, other)) if other is not None and other > shard else None


class _WatchedBoard(Board):
    def __init__(self, table: SimTable, shape: BoardShape) -> None:
        super().__init__(memoryview(bytearray(shape.size_bytes)), shape)
        self._table = table

    def set_starts_group(self, shard: int, starts: bool) -> None:
        before = self.groups()
        super().set_starts_group(shard, starts)
        groups = self.groups()
        if group_ids(groups) != [each for each, starts_here in enumerate(self._starts) if starts_here]:
            self._table.troubles.append(f"{before} became {groups}, with a group inside another")
            return
        for group in group_ids(before):
            if group not in group_ids(groups):
                lower = buddy(before, group)
                if lower is None or lower > group or groups[group] != lower:
                    self._table.troubles.append(f"{before} became {groups}: {group} did not merge into its lower buddy")
        for group in (before[shard] if starts else groups[shard], shard):
            if self._table.holder(group) is None:
                self._table.troubles.append(f"{before} became {groups} without the lock of group {group}")


class SimLink:
    def __init__(self, table: SimTable, other: SimTable, shard: int, process: Process) -> None:
        self._table = table
        self.other_board: Board | None = other.board
        self._process = process
        self.shard = shard
        self.board: Board = table.board
        self.files = table.files

    def try_lock(self, group: int) -> bool:
        if self._table.holder(group) is not None:
            return False
        self._table.locks[group] = (self._process, self._table.loop.time())
        return True

    def unlock(self, group: int) -> None:
        process, since_s = self._table.locks.pop(group)
        if process is not self._process:
            self._table.troubles.append(f"{self._process} gave back the lock of {process}")
        held_s = self._table.loop.time() - since_s
        if held_s > 0:
            self._table.troubles.append(f"shard {self.shard} held the lock of group {group} for {held_s * 1000:.0f} ms")

    def wake(self, shard: int) -> None:
        self._table.wake(shard)

    def listen(self, woken: Callable[[], None]) -> None:
        self._table.listeners[self.shard] = (self._process, woken)
