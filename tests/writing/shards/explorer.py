"""Runs several actors in all orders in which their accesses to shared memory can come, one order after the other.

Each actor is plain code in a thread of its own. Only one runs at a time: before every access to what is shared it
stops, and the explorer says who goes on. An order is given up as soon as it differs from one that was explored only in
accesses that do not touch each other, so what remains is one order for each way in which the accesses that do can
follow each other (dynamic partial order reduction, with sleep sets). Nothing is drawn at random, and nothing is left
out.

Accesses take effect at once and in the order of the program. What processors make of that is not explored: the board
does not rely on any order of stores without a lock.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field


class _Abandoned(BaseException):
    """Raised in an actor that must not go on: it was killed, or its order is not worth following any more."""


@dataclass(frozen=True, slots=True)
class Access:
    """The next step of an actor. Two accesses depend on each other if they touch the same thing and one changes
    it."""

    reads: frozenset[Hashable] = frozenset()
    writes: frozenset[Hashable] = frozenset()

    def depends_on(self, other: "Access") -> bool:
        return not (
            self.writes.isdisjoint(other.writes)
            and self.writes.isdisjoint(other.reads)
            and self.reads.isdisjoint(other.writes)
        )


@dataclass(slots=True)
class _State:
    """One step of the current order: who could go on, who did, and who must still be tried."""

    pending: dict[str, Access]
    chosen: str
    sleeping: set[str]
    """Actors that need not be tried here: the rest was explored from an earlier step."""
    to_try: set[str] = field(default_factory=set)


class World:
    """The world in which one order runs. `explore` builds a new one for each."""

    def __init__(self) -> None:
        self.actors: dict[str, Callable[[], None]] = {}
        self.check_end: Callable[[], None] = lambda: None
        self._run: _Run | None = None

    def add(self, name: str, program: Callable[[], None]) -> None:
        self.actors[name] = program

    @property
    def current(self) -> str | None:
        """The actor that runs, or None before the first and after the last access."""
        return self._run.current if self._run is not None else None

    def access(self, access: Access) -> None:
        """Called by actors before they touch anything shared; does nothing outside of an exploration."""
        if self._run is not None:
            self._run.stop_before(access)

    def kill(self, name: str) -> None:
        """The actor does nothing more. Called by another one."""
        assert self._run is not None
        self._run.killed.add(name)

    def fail(self, trouble: str) -> None:
        """Note a broken rule. Called by the actor that broke it."""
        error = AssertionError(trouble)
        if self._run is None:
            raise error
        self._run.failure = error
        raise _Abandoned

    def is_killed(self, name: str) -> bool:
        return self._run is not None and name in self._run.killed


class _Run:
    """One order: follows the states that are given, and goes on as it likes from there."""

    def __init__(self, world: World, prefix: list[_State]) -> None:
        self.world = world
        self.states = prefix
        self._depth = 0
        self.pending: dict[str, Access] = {}
        self.killed: set[str] = set()
        self.current: str | None = None
        self.failure: BaseException | None = None
        self.is_redundant = False
        self._is_over = False
        self._awake = {name: threading.Semaphore(0) for name in world.actors}
        self._ended = threading.Semaphore(0)
        self._clocks: dict[str, dict[str, int]] = {name: {} for name in world.actors}
        self._written: dict[Hashable, tuple[int, str]] = {}
        self._read: dict[Hashable, dict[str, int]] = {}
        self._step_clocks: list[dict[str, int]] = []

    def follow(self) -> None:
        self.world._run = self
        threads = [threading.Thread(target=self._act, args=(name,), daemon=True) for name in self.world.actors]
        for thread in threads:
            thread.start()
            self._ended.acquire()  # it stands before its first access
        self._go_on(None)
        self._ended.acquire()
        self._is_over = True
        for name, thread in zip(self.world.actors, threads, strict=True):
            self._awake[name].release()
            thread.join()
        self.world._run = None
        if self.failure is None and not self.is_redundant:
            self.world.check_end()

    # ── in the actors' threads ──

    def _act(self, name: str) -> None:
        try:
            self.pending[name] = Access()
            self._ended.release()
            self._awake[name].acquire()
            if self._is_over:
                return
            self.world.actors[name]()
        except _Abandoned:
            if self.failure is not None and not self._is_over:
                self._ended.release()
            return
        except BaseException as error:  # noqa: BLE001 - whatever an actor dies of is what the explorer is for
            self.failure = error
            self._ended.release()
            return
        del self.pending[name]
        self._go_on(name)

    def stop_before(self, access: Access) -> None:
        name = self.current
        if name is None or self._is_over or self.failure is not None:
            raise _Abandoned
        self.pending[name] = access
        self._go_on(name)
        if self.current != name:
            raise AssertionError("two actors run at once")
        if self._is_over:
            raise _Abandoned

    def _go_on(self, running: str | None) -> None:
        """Choose who makes its next access, and let it. Returns in the actor that called it when that is chosen."""
        chosen = self._choose(running)
        if chosen is None:
            self._ended.release()
        else:
            self._note(chosen)
            self.current = chosen
            if chosen == running:
                return
            self._awake[chosen].release()
        if running is not None and running in self.pending:
            self._awake[running].acquire()
            if self._is_over:
                raise _Abandoned

    # ── which order ──

    def _choose(self, running: str | None) -> str | None:
        enabled = {name: access for name, access in self.pending.items() if name not in self.killed}
        if not enabled:
            return None
        if self._depth < len(self.states):
            state = self.states[self._depth]
            assert state.pending == enabled, "the same order did not do the same again"
        else:
            sleeping: set[str] = set()
            if self.states:
                last = self.states[-1]
                taken = last.pending[last.chosen]
                sleeping = {
                    name for name in last.sleeping if name in enabled and not last.pending[name].depends_on(taken)
                }
            awake = [name for name in enabled if name not in sleeping]
            if not awake:
                self.is_redundant = True
                return None
            chosen = running if running in awake else awake[0]
            assert chosen is not None
            state = _State(enabled, chosen, sleeping)
            self.states.append(state)
        self._depth += 1
        return state.chosen

    def _note(self, name: str) -> None:
        """Find the last earlier access that this one depends on and that could as well have come after it, and have
        that tried."""
        step = self._depth - 1
        access = self.states[step].pending[name]
        clock = self._clocks[name]
        rivals = [self._written[place] for place in access.reads | access.writes if place in self._written]
        for place in access.writes:
            rivals += [(at, reader) for reader, at in self._read.get(place, {}).items()]
        races = [at for at, rival in rivals if rival != name and clock.get(rival, -1) < at]
        if races:
            state = self.states[max(races)]
            state.to_try |= {name} if name in state.pending else set(state.pending)
        after = dict(clock)
        for at, _ in rivals:
            for other, known in self._step_clocks[at].items():
                after[other] = max(after.get(other, -1), known)
        after[name] = step
        self._clocks[name] = after
        self._step_clocks.append(after)
        for place in access.writes:
            self._written[place] = (step, name)
            self._read[place] = {}
        for place in access.reads:
            self._read.setdefault(place, {})[name] = step


@dataclass(frozen=True, slots=True)
class Explored:
    orders: int
    """Orders that were run to their end."""
    accesses_max: int
    failure: BaseException | None
    """The failure of the first order that failed; none was run after it."""
    order: tuple[str, ...] = ()
    """The actor of each access in that order."""


def explore(build: Callable[[], World], *, orders_max: int) -> Explored:
    """Run the world in all orders, or until one fails. Raises if there are more than `orders_max`."""
    states: list[_State] = []
    orders = accesses_max = 0
    while True:
        run = _Run(build(), states)
        failure: BaseException | None = None
        try:
            run.follow()
        except AssertionError as error:  # of the check at the end
            failure = error
        failure = run.failure or failure
        accesses_max = max(accesses_max, len(states))
        orders += not run.is_redundant
        if failure is not None:
            return Explored(orders, accesses_max, failure, tuple(state.chosen for state in states))
        if orders > orders_max:
            raise RuntimeError(f"there are more than {orders_max} orders")
        while states:
            state = states[-1]
            state.sleeping.add(state.chosen)
            left = state.to_try - state.sleeping
            if left:
                state.chosen = min(left)
                break
            states.pop()
        if not states:
            return Explored(orders, accesses_max, None)
