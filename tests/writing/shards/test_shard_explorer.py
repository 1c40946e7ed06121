"""Shards in all orders of their accesses: the map, the locks, the pulls, and what the dead leave behind.

Each configuration is explored whole, which takes from 31 orders to about 2,400: the shards' decision on shared memory
(docs/decisions/0005) lists them. The planted mistakes show that what must hold is really looked at; the first two were
once in the code.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import structlog
from tests.writing.shards.explorer import Access, Explored, World, explore
from tests.writing.shards.shard_world import Table

from braidlog.sim.mistakes.mistake import replaced
from braidlog.writing.order_node import OrderNode
from braidlog.writing.shards import board as board_module
from braidlog.writing.shards.board import Board, Outcome, Ring
from braidlog.writing.shards.file_states import FileState, FileStates
from braidlog.writing.shards.outbox import Outbox
from braidlog.writing.shards.puller import PulledDraft
from braidlog.writing.shards.scheduler import ShardScheduler
from braidlog.writing.shards.shard_groups import GroupLocks, Regrouper

Steps = dict[int, tuple[str, ...]]


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


@dataclass(frozen=True, slots=True)
class Configuration:
    groups: list[int]
    shards: Steps
    """The steps of each shard while all orders are explored."""
    before: Steps
    """The steps of each shard before that."""
    dies: int | None = None
    """A shard that dies at any moment of it."""
    journaled: bool = False

    def build(self) -> World:
        world = World()
        table = Table(world, len(self.groups), self.groups, journaled=self.journaled)
        for shard, steps in self.before.items():
            table.before(shard, *steps)
        for shard, steps in self.shards.items():
            table.add_shard(shard, *steps)
        if self.dies is not None:
            table.add_killer(self.dies)
        return world

    def explore(self, orders_max: int) -> Explored:
        return explore(self.build, orders_max=orders_max)


WAITING = ("write", "publish")

CONFIGURATIONS = {
    "two groups split": Configuration([0, 0, 2, 2], {0: ("split",), 2: ("split",)}, {}),
    "two groups of six shards split": Configuration([0, 0, 0, 0, 4, 4], {0: ("split",), 4: ("split",)}, {}),
    "two pairs merge": Configuration([0, 1, 2, 3], {0: ("merge",), 2: ("merge",)}, {}),
    "one merges while the other splits": Configuration([0, 0, 2, 2], {0: ("merge",), 2: ("split",)}, {}),
    "one joins and writes": Configuration([0, 1], {0: ("merge",), 1: ("write", "pump")}, {}),
    "an answer comes back": Configuration([0, 0], {0: ("answer",), 1: ("hear",)}, {1: WAITING, 0: ("pump",)}),
    "a puller dies": Configuration([0, 0], {0: ("write", "pump")}, {1: WAITING}, dies=0),
    "the second file of a partition is stored first": Configuration(
        [0, 0],
        {0: ("store", "sequence"), 1: (*WAITING, "pump", "store", "hear", "sequence")},
        {1: WAITING, 0: ("pump",)},
        journaled=True,
    ),
    "a journal file goes its way": Configuration(
        [0, 0], {0: ("store", "sequence"), 1: ("hear", "hear")}, {1: WAITING, 0: ("pump",)}, journaled=True
    ),
    "a shard dies with a journal file": Configuration(
        [0, 0], {0: ("store", "sequence"), 1: ("hear",)}, {1: WAITING, 0: ("pump",)}, dies=0, journaled=True
    ),
    "a group splits while it is pulled": Configuration(
        [0, 0, 0, 0], {0: ("split",), 1: ("pump",)}, {2: WAITING, 1: WAITING}
    ),
    "two pull the same": Configuration([0, 0], {0: ("pump",), 1: ("pump",)}, {0: WAITING, 1: WAITING}),
    "one is alone again": Configuration([0, 0], {0: ("split",), 1: ("pump",)}, {1: WAITING}),
    "whoever splits dies": Configuration([0, 0, 2, 2], {0: ("split",), 2: ("split",)}, {}, dies=0),
    "whoever merges dies": Configuration([0, 1], {0: ("merge",), 1: ("write",)}, {}, dies=0),
}


BOTH_HALVES_PULL = Configuration([0, 0, 0, 0], {0: ("split",), 1: ("pump",), 2: ("pump",)}, {2: WAITING, 1: WAITING})
"""Three shards have too many orders to explore all of them; few of them find a mistake."""

QUICK = list(CONFIGURATIONS)[:8]
ORDERS_MAX = 20_000


def test_the_explorer_finds_all_orders_of_two_that_touch_each_other() -> None:
    seen: set[str] = set()

    def build() -> World:
        world = World()
        order: list[str] = []

        def write_twice(name: str) -> None:
            for _ in range(2):
                world.access(Access(writes=frozenset({"it"})))
                order.append(name)

        for name in "ab":
            world.add(name, partial(write_twice, name))
        world.check_end = lambda: seen.add("".join(order))
        return world

    assert explore(build, orders_max=6).orders == 6
    assert seen == {"aabb", "abab", "abba", "baab", "baba", "bbaa"}


def test_the_explorer_finds_one_order_of_two_that_do_not() -> None:
    def build() -> World:
        world = World()
        for name in "ab":
            world.add(name, partial(world.access, Access(writes=frozenset({name}))))
        return world

    assert explore(build, orders_max=6).orders == 1


@pytest.mark.parametrize("name", QUICK)
def test_all_orders(name: str) -> None:
    check_all_orders(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONFIGURATIONS if name not in QUICK])
def test_all_of_more_orders(name: str) -> None:
    check_all_orders(name)


def check_all_orders(name: str) -> None:
    explored = CONFIGURATIONS[name].explore(ORDERS_MAX)
    assert explored.failure is None, f"after {explored.orders} orders, in {' '.join(explored.order)}"
    assert explored.orders > 1


# ── mistakes ──


def whole_map_written() -> AbstractContextManager[None]:
    """A group that changes its own entry of the map writes all the others again, as it has seen them."""

    def set_starts_group(self: Board, shard: int, starts: bool) -> None:
        for each, value in enumerate(self._starts.tolist()):
            self._starts[each] = int(starts) if each == shard else value

    return replaced((Board, "set_starts_group", set_starts_group))


def members_before_the_lock() -> AbstractContextManager[None]:
    """A puller takes the members that it saw before it took the lock."""
    pull_if_due, pull = ShardScheduler._pull_if_due, ShardScheduler._pull
    seen: dict[ShardScheduler, range] = {}

    def pull_if_due_wrongly(self: ShardScheduler) -> float | None:
        seen[self] = self._board.members_of(self._shard)
        return pull_if_due(self)

    def pull_wrongly(self: ShardScheduler, _: range) -> PulledDraft | None:
        return pull(self, seen[self])

    return replaced((ShardScheduler, "_pull_if_due", pull_if_due_wrongly), (ShardScheduler, "_pull", pull_wrongly))


def decided_before_the_locks() -> AbstractContextManager[None]:
    """A decision that was made without the locks is carried out under them."""
    decide = Regrouper._decide

    def decide_once(self: Regrouper, *args: Any, same_as: Any = None, **named: Any) -> Any:
        return same_as or decide(self, *args, **named)

    return replaced((Regrouper, "_decide", decide_once))


def one_lock_for_both() -> AbstractContextManager[None]:
    """A shard that splits or merges takes the lock of the lower group only."""

    @contextmanager
    def both(self: GroupLocks, lower: int, _: int) -> Iterator[bool]:
        taken = self.take(lower)
        try:
            yield taken
        finally:
            if taken:
                self.give(lower)

    return replaced((GroupLocks, "both", both))


def budget_without_the_lock() -> AbstractContextManager[None]:
    """A shard that finds itself alone writes its budget down without a lock."""

    def show(self: ShardScheduler) -> None:
        self._board.set_budget(self._shard, 0.0, 0.0)

    return replaced((ShardScheduler, "_show_own_budget", show))


def group_not_looked_at_again() -> AbstractContextManager[None]:
    """A shard takes the lock of its group and does not look whether it is still in it."""

    def take_of(self: GroupLocks, board: Board, shard: int) -> int | None:
        group = board.group_of(shard)
        return group if self.take(group) else None

    return replaced((GroupLocks, "take_of", take_of))


def outcome_read_before_it_is_checked() -> AbstractContextManager[None]:
    """An outcome is read, and then read again to check it."""
    outcome = Ring.outcome

    def read_twice(self: Ring, ticket: int) -> Outcome | None:
        at = self._slot(ticket) + board_module._OUTCOME_AT + 4
        _, error_code, base_offset, log_start_offset, _, _ = board_module._OUTCOME.unpack_from(
            bytes(self._slots[at : at + board_module._OUTCOME.size])
        )
        return Outcome(error_code, base_offset, log_start_offset) if outcome(self, ticket) is not None else None

    return replaced((Ring, "outcome", read_twice))


def marked_after_the_head() -> AbstractContextManager[None]:
    """A puller moves the head first, and marks the batches as pulled after that."""
    mark_pulled, move_head = Ring.mark_pulled, Ring.move_head
    marks: list[tuple[int, Any]] = []

    def move_first(self: Ring, ticket_end: int) -> None:
        move_head(self, ticket_end)
        while marks:
            mark_pulled(self, *marks.pop())

    def mark_later(self: Ring, ticket: int, puller: Any) -> None:
        marks.append((ticket, puller))

    return replaced((Ring, "mark_pulled", mark_later), (Ring, "move_head", move_first))


def taken_back_without_the_lock() -> AbstractContextManager[None]:
    """A shard that finds itself alone takes back what is in its ring, whoever is about to pull it."""

    def stop_sharing(self: ShardScheduler, *, unless_joined: bool) -> bool:
        self._is_sharing = False
        for request in self._outbox.withdraw():
            self._batcher.submit(request)
        return True

    return replaced((ShardScheduler, "_stop_sharing", stop_sharing))


def answered_is_never_cleared() -> AbstractContextManager[None]:
    """A shard does not say that a batch may be sequenced once the batch is answered, as a journaled one soon is."""
    clear = Outbox._clear

    def clear_unanswered(self: Outbox, ticket: int, node: OrderNode) -> None:
        if ticket in self._published:
            clear(self, ticket, node)

    return replaced((Outbox, "_clear", clear_unanswered))


def stored_is_handed_over() -> AbstractContextManager[None]:
    """A shard lets its next batch be sequenced as soon as the one before it is stored."""
    state = FileStates.state

    def state_too_far(self: FileStates, shard: int, number: int) -> FileState:
        return max(state(self, shard, number), FileState.HANDED_OVER)

    return replaced((FileStates, "state", state_too_far))


@pytest.mark.parametrize(
    ("plant", "name", "trouble"),
    [
        (whole_map_written, "two groups split", "without the lock"),
        (members_before_the_lock, "a group splits while it is pulled", "was pulled by 1 without the lock of 2"),
        (decided_before_the_locks, "one merges while the other splits", "inside another"),
        (one_lock_for_both, "two groups split", "without the lock"),
        (budget_without_the_lock, "two pairs merge", "the line of group"),
        (group_not_looked_at_again, "one is alone again", "without the lock"),
        (outcome_read_before_it_is_checked, "an answer comes back", "offset"),
        (marked_after_the_head, "a puller dies", "never answered"),
        (taken_back_without_the_lock, "one is alone again", "without the lock"),
        (answered_is_never_cleared, "the second file of a partition is stored first", "waits for a file for ever"),
        (stored_is_handed_over, "the second file of a partition is stored first", "in this order"),
    ],
)
def test_a_mistake_is_found(plant: Callable[[], AbstractContextManager[None]], name: str, trouble: str) -> None:
    with plant():
        explored = CONFIGURATIONS[name].explore(ORDERS_MAX)
    assert explored.failure is not None
    assert trouble in str(explored.failure)


def test_batches_are_seen_to_be_pulled_twice_even_where_nobody_looks_at_the_locks() -> None:
    """A mistake leads to the same batch in two objects."""
    with members_before_the_lock(), replaced((Table, "_check_locked", lambda *_: None)):
        explored = BOTH_HALVES_PULL.explore(ORDERS_MAX)
    assert "more than once" in str(explored.failure)


def test_changes_are_seen_to_be_lost_even_where_nobody_looks_at_the_locks() -> None:
    with whole_map_written(), replaced((Table, "_check_locked", lambda *_: None)):
        explored = CONFIGURATIONS["two groups split"].explore(ORDERS_MAX)
    assert "lost" in str(explored.failure)
