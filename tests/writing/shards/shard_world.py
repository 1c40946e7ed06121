"""Shards around one board for the explorer: the real board, locks and sharing, with an access at every word.

What must hold is checked at every store:

- whatever the words say is a valid map, and no group lies inside another;
- the word of a shard is changed under the locks of both groups that it parts or joins;
- a group's line is written under its lock, and the head of a ring under the lock of the group that it is in.

At the end all goes on without interleaving until every batch is answered. Then each was uploaded once, the map has as
many groups as splits and merges made, and every backlog is counted as empty.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from tests.fakes import FakeClock
from tests.scheduling.group_map import check_groups
from tests.writing.shards.explorer import Access, World
from tests.writing.shards.shard_rig import ShardRig

from braidlog.scheduling.shard_groups import group_ids
from braidlog.writing.shards.board import _GROUP, _PULLS, LINE_BYTES, Board, BoardShape
from braidlog.writing.shards.file_states import FileStates
from braidlog.writing.shards.shard_groups import GroupLocks, bury

QUIET_ROUNDS_MAX = 50
FILE_COUNT = 8


class WatchedMemory:
    """A memoryview that makes every word an access of its own. What is longer than a word is read and written word by
    word, as another process may see it."""

    def __init__(self, table: "Table", start: int, end: int, form: str = "B") -> None:
        self._table = table
        self._start = start
        self._end = end
        self._form = form
        self._item_bytes = 1 if form == "B" else 8

    def __len__(self) -> int:
        return (self._end - self._start) // self._item_bytes

    def cast(self, form: str) -> "WatchedMemory":
        return WatchedMemory(self._table, self._start, self._end, form)

    def _bounds(self, key: slice) -> tuple[int, int]:
        start, end, _ = key.indices(len(self))
        return self._start + start * self._item_bytes, self._start + end * self._item_bytes

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return WatchedMemory(self._table, *self._bounds(key), self._form)
        at = self._start + key * self._item_bytes
        self._table.read(at)
        return self._table.memory[at : at + self._item_bytes].cast(self._form)[0]

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, slice):
            self._table.write(self._bounds(key)[0], bytes(value))
            return
        at = self._start + key * self._item_bytes
        item = memoryview(bytearray(self._item_bytes))
        item.cast(self._form)[0] = value
        self._table.write(at, bytes(item))

    def __bytes__(self) -> bytes:
        copied = bytearray()
        for start, end in _words(self._start, self._end):
            self._table.read(start)
            copied += self._table.memory[start:end]
        return bytes(copied)

    def tolist(self) -> list[Any]:
        return [self[at] for at in range(len(self))]


def _words(start: int, end: int) -> Iterator[tuple[int, int]]:
    while start < end:
        stop = min(end, start // 8 * 8 + 8)
        yield start, stop
        start = stop


class Loop:
    """As much of an event loop as a shard needs whose callbacks the test runs itself."""

    def time(self) -> float:
        return 0.0

    def call_soon(self, *_: Any) -> asyncio.Handle | None:
        return None

    def call_later(self, *_: Any) -> asyncio.Handle | None:
        return None


class TableLink:
    def __init__(self, table: "Table", shard: int) -> None:
        self._table = table
        self.shard = shard
        self.board = table.watched
        self.other_board = None
        self.files = table.files

    def try_lock(self, group: int) -> bool:
        return self._table.try_lock(group)

    def unlock(self, group: int) -> None:
        self._table.unlock(group)

    def wake(self, shard: int) -> None:
        """All look again in the end."""

    def listen(self, woken: Callable[[], None]) -> None:
        """All look again in the end."""


@cache
def _access_of(actor: str, place: int | tuple[str, int], *, writes: bool) -> Access:
    """Whatever a process does depends on whether it is alive."""
    alive = frozenset({("process", actor)})
    return Access(alive, frozenset({place})) if writes else Access(alive | {place})


class Table:
    """The memory, the locks, and the shards around them. Actors are named after their shards."""

    def __init__(self, world: World, shard_count: int, groups: Sequence[int], *, journaled: bool = False) -> None:
        self.world = world
        self.journaled = journaled
        self.handed_over: list[bytes] = []
        """The batches of journal files, in the order in which they went to the control plane."""
        shape = BoardShape(shard_count, slot_count=4, arena_bytes=256)
        size_bytes = shape.size_bytes + FileStates.size_bytes(shard_count, FILE_COUNT)
        self.memory = memoryview(bytearray(size_bytes))
        self.board = Board(self.memory, shape)
        """As it is, for checks."""
        self.groups_first = len(group_ids(groups))
        self.locks: dict[int, str | None] = {}
        for group in group_ids(groups):
            if group:
                self.board.set_starts_group(group, True)
        self.watched = Board(WatchedMemory(self, 0, shape.size_bytes), shape)  # type: ignore[arg-type]
        watched_files: Any = WatchedMemory(self, shape.size_bytes, size_bytes)
        self.files = FileStates(watched_files, shard_count, FILE_COUNT)
        asyncio._set_running_loop(Loop())  # type: ignore[arg-type]
        self.rigs = [self._sit_down(shard) for shard in range(shard_count)]
        self.dead: list[ShardRig] = []
        self.unburied: set[int] = set()
        asyncio._set_running_loop(None)
        world.check_end = self.check_end

    def _sit_down(self, shard: int) -> ShardRig:
        rig = ShardRig(TableLink(self, shard), FakeClock(look_s=1.0), journaled=self.journaled)
        rig.on_handed_over = self.handed_over.append
        rig.scheduler.start()
        return rig

    # ── what actors do ──

    def add_shard(self, shard: int, *steps: str) -> None:
        """Steps are a rig's and a shard's own entry points: see `_step`."""
        self.world.add(str(shard), lambda: self._steps(self.rigs[shard], steps))

    def _steps(self, rig: ShardRig, steps: Sequence[str]) -> None:
        asyncio._set_running_loop(Loop())  # type: ignore[arg-type]
        for step in steps:
            self._step(rig, step)

    def before(self, shard: int, *steps: str) -> None:
        """Do the steps that come before the exploration."""
        try:
            self._steps(self.rigs[shard], steps)
        finally:
            asyncio._set_running_loop(None)

    def _step(self, rig: ShardRig, step: str) -> None:
        if step == "write":
            rig.write()
        elif step == "publish":
            rig.scheduler._outbox.publish()
        elif step == "pump":
            rig.scheduler._pump()
        elif step in ("split", "merge"):
            rig.policy.wants = "split" if step == "split" else "merge"
            rig.scheduler._tick()
        elif step == "answer":
            rig.answer()
        elif step == "store":
            rig.store()
        elif step == "sequence":
            rig.sequence()
        elif step == "hear":
            rig.scheduler._woken()
        else:
            raise ValueError(step)

    def add_killer(self, shard: int) -> None:
        """At any moment the shard's process dies, the kernel takes its locks back, and the supervisor buries it."""
        self.world.add("supervisor", lambda: self._kill(shard))

    def _kill(self, shard: int) -> None:
        locks = {("lock", group) for group in range(self.board.shard_count)}
        self.world.access(Access(writes=frozenset({("process", str(shard)), *locks})))
        self.world.kill(str(shard))
        for group, holder in self.locks.items():
            if holder == str(shard):
                self.locks[group] = None
        self.dead.append(self.rigs[shard])
        self.unburied.add(shard)
        self._bury(shard)

    def _bury(self, shard: int) -> bool:
        if not bury(self.watched, GroupLocks(TableLink(self, shard)), shard):
            return False
        self.unburied.discard(shard)
        return True

    # ── what they touch ──

    def _access(self, place: int | tuple[str, int], *, writes: bool) -> None:
        if self.world.current is not None:
            self.world.access(_access_of(self.world.current, place, writes=writes))

    def read(self, at: int) -> None:
        self._access(at // 8, writes=False)

    def write(self, at: int, content: bytes) -> None:
        for start, end in _words(at, at + len(content)):
            self._access(start // 8, writes=True)
            if self.world.current is None or start >= self.board.shape._slots_at:
                self.memory[start:end] = content[start - at : end - at]
                continue
            before = self.board.groups()
            self.memory[start:end] = content[start - at : end - at]
            self._check_store(start, before)

    def try_lock(self, group: int) -> bool:
        self._access(("lock", group), writes=True)
        if self.locks.get(group) is not None:
            return False
        self.locks[group] = self.world.current or "test"
        return True

    def unlock(self, group: int) -> None:
        self._access(("lock", group), writes=True)
        if self.locks.get(group) != (self.world.current or "test"):
            self.world.fail(f"{self.world.current} gave back the lock of {group}, which {self.locks.get(group)} has")
        self.locks[group] = None

    # ── what must hold ──

    def _check_store(self, at: int, before: list[int]) -> None:
        board, shape = self.board, self.board.shape
        shard, line = (at - shape._groups_at) // 8, (at - shape._lines_at) // LINE_BYTES
        if at < shape._groups_at:
            return
        if 0 < shard < board.shard_count:
            after = board.groups()
            check_groups(after)
            if group_ids(after) != [each for each, starts in enumerate(board._starts) if starts]:
                self.world.fail(f"{before} became {after}, with a group inside another")
            self._check_locked(f"{before} became {after}", shard, min(before[shard], after[shard]))
        elif at >= shape._lines_at and line < 5 * board.shard_count:
            kind, owner = divmod(line, board.shard_count)
            if kind == _GROUP:
                self._check_locked(f"the line of group {owner} was written", owner)
            elif kind == _PULLS:
                self._check_locked(f"the ring of shard {owner} was pulled", before[owner])

    def _check_locked(self, what: str, *groups: int) -> None:
        actor = self.world.current
        for group in groups:
            if actor is not None and self.locks.get(group) != actor:
                self.world.fail(f"{what} by {actor} without the lock of {group}, which {self.locks.get(group)} has")

    def check_end(self) -> None:
        asyncio._set_running_loop(Loop())  # type: ignore[arg-type]
        try:
            for shard in sorted(self.unburied):
                assert self._bury(shard), "a lock that nobody gives back"
            for rig in self.dead:
                self.rigs[rig.shard] = self._sit_down(rig.shard)
            for _ in range(QUIET_ROUNDS_MAX):
                for rig in self.rigs:
                    rig.policy.wants = "neither"
                    rig.scheduler._woken()
                    rig.scheduler._pump()
                    rig.scheduler._batcher._pump()
                    rig.answer()
                if all(rig.is_quiet for rig in self.rigs):
                    break
        finally:
            asyncio._set_running_loop(None)
        self._check_batches()
        self._check_order()
        groups = self.board.groups()
        if not self.dead:  # it might have died between the change and its own count of it
            changes = sum(rig.scheduler._regrouper.splits - rig.scheduler._regrouper.merges for rig in self.rigs)
            assert len(group_ids(groups)) == self.groups_first + changes, f"a change was lost: {groups}"
        for shard in range(self.board.shard_count):
            assert self.board.load(shard).backlog_bytes == 0, f"shard {shard} seems to have a backlog"

    def _check_batches(self) -> None:
        everybody = [*self.rigs, *self.dead]
        uploaded = Counter(records for rig in everybody for records in rig.uploaded)
        twice = [records for records, count in uploaded.items() if count > 1]
        assert not twice, f"{twice} were uploaded more than once"
        for rig in self.rigs:
            for records in rig.submitted:
                code = rig.answered.get(records)
                assert code is not None, f"{records!r} was never answered"
                if code == 0:
                    assert uploaded[records] == 1, f"{records!r} was acknowledged and is nowhere"
                else:
                    assert self.dead, f"{records!r} was refused with {code}"

    def _check_order(self) -> None:
        """A shard's journaled batches go to the control plane in their order, and then it knows that they did."""
        for rig in self.rigs:
            own = [records for records in self.handed_over if records in rig.submitted]
            assert own == sorted(own, key=rig.submitted.index), f"{own} went to the control plane in this order"
            assert not len(rig.unsequenced), f"shard {rig.shard} waits for a file for ever"
            assert self.dead or not rig.left, f"shard {rig.shard} took a file for left"
