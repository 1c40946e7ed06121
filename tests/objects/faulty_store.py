"""A store that fails on purpose."""

import asyncio
from collections.abc import Awaitable, Callable

from braidlog.objects.faults import Fault, FaultPlan
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
