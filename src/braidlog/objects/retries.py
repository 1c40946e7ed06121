"""Repeats requests that may succeed later.

It also finds out whether an unanswered write took effect.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from braidlog.objects.store import AlreadyExists, Bytes, Conflict, NotFound, Store, StoreError, StoreTimeout
from braidlog.objects.wrapper import Operation, Request, StoreWrapper, T
from braidlog.runtime.backoff import Backoff
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import Remedy

PROOF_BYTES = 64
"""The bytes of an object's end that identify its writer: they hold the trailer, with its nonce."""
WHOLE_PROOF_BYTES_MAX = 64 * 1024
"""Objects up to this size are compared whole, which also yields their etag."""


BYTES_PER_S_MIN = 4 * 1024 * 1024
"""A put may take longer by its size at this rate, so that large objects can be stored at all."""


DEFAULT_BACKOFF = Backoff(first_s=0.05, max_s=5.0)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    attempts_max: int = 8
    backoff: Backoff = DEFAULT_BACKOFF
    attempt_timeout_s: float = 20.0
    deadline_s: float = 90.0
    """The time for all attempts of one operation together."""


DEFAULT_RETRY = RetryPolicy()


class RetryingStore(StoreWrapper):
    """Repeats requests with exponential backoff.

    It does so within a number of attempts and a deadline.

    A write that got no answer may have taken effect. If a later attempt finds the object there, it is ours if its size
    and its end match. If no attempt settles it, the error is `StoreTimeout`, never one that says "nothing was written".
    """

    def __init__(self, inner: Store, policy: RetryPolicy, *, clock: Clock, entropy: Entropy) -> None:
        super().__init__(inner)
        self._policy = policy
        self._clock = clock
        self._entropy = entropy

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        async def put() -> str | None:
            return await self.inner.put(key, data, overwrite=overwrite)

        return await self._write(Request(Operation.PUT, key), put, data)

    async def update(self, key: str, data: Bytes, *, etag: str) -> str | None:
        async def update() -> str | None:
            return await self.inner.update(key, data, etag=etag)

        return await self._write(Request(Operation.UPDATE, key), update, data)

    async def _write(self, request: Request, call: Callable[[], Awaitable[str | None]], data: Bytes) -> str | None:
        unknown: list[StoreError] = []
        try:
            return await self._attempts(request, call, unknown, len(data) / BYTES_PER_S_MIN)
        except (AlreadyExists, Conflict) as error:
            if not unknown:
                raise
            refusal = error
        except StoreError as error:
            if unknown and not isinstance(error, StoreTimeout):
                raise StoreTimeout(
                    f"{request.operation.value} {request.key}: an attempt got no answer, the last one failed ({error})",
                    help="It may have been written: look before writing it again.",
                ) from error
            raise
        ours, etag = await self._is_ours(request.key, data)
        if not ours:
            raise refusal
        return etag

    async def _is_ours(self, key: str, data: Bytes) -> tuple[bool, str | None]:
        size = len(data)
        try:
            if size <= WHOLE_PROOF_BYTES_MAX:
                blob = await self.get(key)
                return blob.data == data, blob.etag
            tail = await self.get_tail(key, PROOF_BYTES)
        except NotFound:
            return False, None
        except StoreError as error:
            raise StoreTimeout(
                f"{key} exists, but whose it is could not be read ({error})",
                help="It may have been written: look before writing it again.",
            ) from error
        return tail.size == size and tail.data == memoryview(data)[-PROOF_BYTES:], None

    async def _around(self, request: Request, call: Callable[[], Awaitable[T]]) -> T:
        return await self._attempts(request, call, [])

    async def _attempts(
        self, request: Request, call: Callable[[], Awaitable[T]], unknown: list[StoreError], transfer_s: float = 0.0
    ) -> T:
        """`transfer_s` is how much longer an attempt may take, because of what it sends."""
        policy = self._policy
        deadline_s = self._clock.monotonic_s() + policy.deadline_s + transfer_s
        attempt = 0
        while True:
            left_s = max(0.0, deadline_s - self._clock.monotonic_s())
            timeout_s = min(policy.attempt_timeout_s + transfer_s, left_s)
            failure: StoreError
            try:
                async with asyncio.timeout(timeout_s):
                    return await call()
            except TimeoutError:
                failure = StoreTimeout(
                    f"{request.operation.value} {request.key}: no answer within {timeout_s:.3g} s",
                    help="Is the store reachable, and is the network fast enough for the size of the objects?",
                )
            except StoreError as error:
                if error.remedy not in (Remedy.RETRY, Remedy.CHECK_OUTCOME):
                    raise
                failure = error
            if failure.remedy is Remedy.CHECK_OUTCOME:
                unknown.append(failure)
            attempt += 1
            if attempt >= policy.attempts_max:
                raise failure
            pause_s = policy.backoff.pause_s(attempt - 1, self._entropy)
            if self._clock.monotonic_s() + pause_s >= deadline_s:
                raise failure
            await self._clock.sleep(pause_s)
