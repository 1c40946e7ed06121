"""A store that fails on purpose, by a seeded plan that can change while it runs."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

from braidlog.objects.store import (
    Bytes,
    SlowDown,
    Store,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    TornRead,
)
from braidlog.objects.wrapper import Operation, Request, StoreWrapper, T
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import InvalidSetting


class Fault(Enum):
    ERROR = "error"
    """The store refuses; nothing happens."""
    SLOW_DOWN = "slow down"
    TIMEOUT_BEFORE = "timeout before"
    """No answer, and nothing happened."""
    TIMEOUT_AFTER = "timeout after"
    """No answer, but it happened."""
    TORN_READ = "torn read"
    LATE_PUT = "late put"
    """No answer, and it happens later, when the caller has given up."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How often each fault strikes, from 0 to 1; together at most 1. What cannot happen to an operation does not."""

    error: float = 0.0
    slow_down: float = 0.0
    timeout_before: float = 0.0
    timeout_after: float = 0.0
    torn_read: float = 0.0
    late_put: float = 0.0

    def __post_init__(self) -> None:
        rates = [rate for _, rate in self.items()]
        if min(rates) < 0 or sum(rates) > 1 + 1e-9:
            raise InvalidSetting(f"{self}: rates must not be negative, nor more than 1 together")

    def items(self) -> list[tuple[Fault, float]]:
        return [
            (Fault.ERROR, self.error),
            (Fault.SLOW_DOWN, self.slow_down),
            (Fault.TIMEOUT_BEFORE, self.timeout_before),
            (Fault.TIMEOUT_AFTER, self.timeout_after),
            (Fault.TORN_READ, self.torn_read),
            (Fault.LATE_PUT, self.late_put),
        ]


CALM = FaultRates()


class FaultPlan:
    """Which requests fail, and how. The same entropy and the same requests give the same faults."""

    def __init__(
        self, entropy: Entropy, rates: FaultRates = CALM, *, hang_s: float = 0.0, late_s_max: float = 5.0
    ) -> None:
        """`hang_s` passes before a timeout is reported; a late put lands within `late_s_max` after that."""
        self._entropy = entropy
        self._rates = dict.fromkeys(Operation, rates)
        self._forced: list[tuple[Operation, Fault]] = []
        self.hang_s = hang_s
        self.late_s_max = late_s_max
        self.injected = dict.fromkeys(Fault, 0)

    def set_rates(self, rates: FaultRates, *operations: Operation) -> None:
        """From now on, for these operations or for all."""
        for operation in operations or Operation:
            self._rates[operation] = rates

    def calm(self) -> None:
        self.set_rates(CALM)
        self._forced.clear()

    def force(self, operation: Operation, fault: Fault) -> None:
        """Let the next request of this kind fail so. Several stand in line."""
        self._forced.append((operation, fault))

    def draw(self, operation: Operation) -> Fault | None:
        """The fault of the next request. One number is drawn for each, whatever the rates are."""
        draw = self._entropy.uniform(0.0, 1.0)
        chosen = self._take_forced(operation)
        if chosen is None:
            bound = 0.0
            for fault, rate in self._rates[operation].items():
                bound += rate
                if draw < bound:
                    chosen = fault
                    break
        if chosen is None or (chosen is Fault.TORN_READ and not operation.reads_data):
            return None
        if chosen is Fault.LATE_PUT and not operation.writes:
            return None
        self.injected[chosen] += 1
        return chosen

    def late_s(self) -> float:
        return self._entropy.uniform(0.0, self.late_s_max)

    def _take_forced(self, operation: Operation) -> Fault | None:
        for index, (candidate, fault) in enumerate(self._forced):
            if candidate is operation:
                del self._forced[index]
                return fault
        return None


class FaultyStore(StoreWrapper):
    def __init__(self, inner: Store, plan: FaultPlan, *, clock: Clock) -> None:
        super().__init__(inner)
        self.plan = plan
        self._clock = clock
        self._late: dict[int, asyncio.Task[None]] = {}
        self._late_count = 0

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        request = Request(Operation.PUT, key)
        return await self._write(request, data, lambda given: self.inner.put(key, given, overwrite=overwrite))

    async def update(self, key: str, data: Bytes, *, etag: str) -> str | None:
        request = Request(Operation.UPDATE, key)
        return await self._write(request, data, lambda given: self.inner.update(key, given, etag=etag))

    async def wait_late(self) -> None:
        """Until all late writes have landed."""
        await asyncio.gather(*self._late.values())

    async def close(self) -> None:
        """Late writes that have not landed never will."""
        late = list(self._late.values())
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await self.inner.close()

    async def _write(
        self, request: Request, data: Bytes, write: Callable[[Bytes], Awaitable[str | None]]
    ) -> str | None:
        fault = self.plan.draw(request.operation)
        if fault is not Fault.LATE_PUT:
            return await self._with_fault(fault, request, lambda: write(data))
        number = self._late_count
        self._late_count += 1
        kept = bytes(data)  # the caller may use its buffer again once it was told of the failure
        task = asyncio.get_running_loop().create_task(self._land(lambda: write(kept), self.plan.late_s()))
        self._late[number] = task
        task.add_done_callback(lambda _: self._late.pop(number, None))
        await self._clock.sleep(self.plan.hang_s)
        raise StoreTimeout(f"{request.operation.value} {request.key}: no answer (injected; it lands later)")

    async def _land(self, write: Callable[[], Awaitable[str | None]], late_s: float) -> None:
        await self._clock.sleep(self.plan.hang_s + late_s)
        try:
            await write()
        except StoreError:
            pass  # whoever wanted to know has long given up

    async def _around(self, request: Request, call: Callable[[], Awaitable[T]]) -> T:
        return await self._with_fault(self.plan.draw(request.operation), request, call)

    async def _with_fault(self, fault: Fault | None, request: Request, call: Callable[[], Awaitable[T]]) -> T:
        what = f"{request.operation.value} {request.key}"
        match fault:
            case Fault.ERROR:
                raise StoreUnavailable(f"{what}: refused (injected)")
            case Fault.SLOW_DOWN:
                raise SlowDown(f"{what}: slow down (injected)")
            case Fault.TIMEOUT_BEFORE | Fault.TIMEOUT_AFTER:
                if fault is Fault.TIMEOUT_AFTER:
                    await call()
                await self._clock.sleep(self.plan.hang_s)
                raise StoreTimeout(f"{what}: no answer (injected)")
            case Fault.TORN_READ:
                await call()
                raise TornRead(f"{what}: too few bytes (injected)")
            case _:
                return await call()
