"""The shards of a simulated agent around one table: the same board and the same rules, in virtual time.

The table also watches over what no client can see: how long a group's lock is held, and who changes the groups.
"""

from collections.abc import Callable

from braidlog.runtime.entropy import Entropy
from braidlog.scheduling.groups import buddy, check_groups, group_ids, halves, members
from braidlog.scheduling.policy import Adaptive
from braidlog.scheduling.regrouping import Merge, RegroupThresholds, Split, Standing
from braidlog.sim.loop import VirtualLoop
from braidlog.sim.process import Process
from braidlog.writing.board import Board, BoardShape

RING_S_MAX = 0.001


class SimTable:
    def __init__(self, loop: VirtualLoop, entropy: Entropy, shape: BoardShape) -> None:
        self.loop = loop
        self.entropy = entropy.fork("bells")
        self.board = _WatchedBoard(self, shape)
        self.locks: dict[int, tuple[Process, float]] = {}
        """By group: who holds it, and since when."""
        self.listeners: dict[int, tuple[Process, Callable[[], None]]] = {}
        self.troubles: list[str] = []

    def sit_down(self, shard: int, process: Process) -> "SimSeat":
        return SimSeat(self, shard, process)

    def holder(self, group: int) -> Process | None:
        held = self.locks.get(group)
        return held[0] if held is not None and held[0].is_alive else None

    def bury(self, shard: int) -> None:
        """What the supervisor does when a shard's process has died."""
        self.board.bury(shard)
        for other in range(self.board.shard_count):
            self.ring(other)

    def ring(self, shard: int) -> None:
        listener = self.listeners.get(shard)
        if listener is not None and listener[0].is_alive:
            delay_s = self.entropy.uniform(0.0, RING_S_MAX)
            self.loop.call_later(delay_s, listener[1], context=listener[0].context)


class Restless(Adaptive):
    """Splits and merges at random, whatever the load: what must hold across a regrouping then has many occasions not
    to."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def regroup(self, thresholds: RegroupThresholds, standing: Standing, shard: int) -> Split | Merge | None:
        groups = standing.groups
        if groups[shard] != shard or self._entropy.below(4):
            return None
        parts = halves(groups, shard)
        other = buddy(groups, shard)
        if parts is not None and (other is None or other < shard or self._entropy.below(2)):
            return Split(shard, parts[1])
        return Merge(shard, members(groups, other)) if other is not None and other > shard else None


class _WatchedBoard(Board):
    def __init__(self, table: SimTable, shape: BoardShape) -> None:
        super().__init__(memoryview(bytearray(shape.size_bytes)), shape)
        self._table = table

    def set_groups(self, groups: list[int]) -> None:
        before = self.groups()
        super().set_groups(groups)
        try:
            check_groups(groups)
        except ValueError as error:
            self._table.troubles.append(str(error))
            return
        for group in group_ids(before):
            if group not in group_ids(groups):
                lower = buddy(before, group)
                if lower is None or lower > group or groups[group] != lower:
                    self._table.troubles.append(f"{before} became {groups}: {group} did not merge into its lower buddy")
        changed = {before[shard] for shard in range(len(groups)) if before[shard] != groups[shard]}
        for group in sorted(
            changed | {groups[shard] for shard in range(len(groups)) if before[shard] != groups[shard]}
        ):
            if group in group_ids(before) and self._table.holder(group) is None:
                self._table.troubles.append(f"{before} became {groups} without the lock of group {group}")


class SimSeat:
    def __init__(self, table: SimTable, shard: int, process: Process) -> None:
        self._table = table
        self._process = process
        self.shard = shard
        self.board: Board = table.board

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

    def ring(self, shard: int) -> None:
        self._table.ring(shard)

    def listen(self, heard: Callable[[], None]) -> None:
        self._table.listeners[self.shard] = (self._process, heard)
