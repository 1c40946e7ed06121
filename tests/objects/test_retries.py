"""Retries, and what they make of writes whose outcome is unknown."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.fakes import FakeClock
from tests.objects.faulty_store import FaultyStore

from braidlog.objects.faults import Fault, FaultPlan, FaultRates
from braidlog.objects.open import open_store
from braidlog.objects.retries import RetryingStore, RetryPolicy
from braidlog.objects.store import (
    AlreadyExists,
    Conflict,
    NotFound,
    SlowDown,
    Store,
    StoreDenied,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
)
from braidlog.objects.wrapper import Operation
from braidlog.runtime.backoff import Backoff
from braidlog.runtime.entropy import SeededEntropy

POLICY = RetryPolicy(attempts_max=4, backoff=Backoff(1.0, 3.0), attempt_timeout_s=5.0, deadline_s=60.0)
LARGE = bytes(range(256)) * 400


class Setting:
    """A memory store that fails as told, under retries."""

    def __init__(self, clock: FakeClock, policy: RetryPolicy = POLICY) -> None:
        entropy = SeededEntropy(1)
        self.memory: Store = open_store("memory://", clock=clock, entropy=entropy, retry=None)
        self.plan = FaultPlan(entropy.fork("faults"))
        self.faulty = FaultyStore(self.memory, self.plan, clock=clock)
        self.store = RetryingStore(self.faulty, policy, clock=clock, entropy=entropy.fork("retry"))

    def fail(self, operation: Operation, *faults: Fault) -> None:
        for fault in faults:
            self.plan.force(operation, fault)


@pytest.fixture
def setting(clock: FakeClock) -> Setting:
    return Setting(clock)


async def test_what_fails_for_a_while_succeeds(setting: Setting, clock: FakeClock) -> None:
    setting.fail(Operation.PUT, Fault.ERROR, Fault.SLOW_DOWN, Fault.ERROR)
    await setting.store.put("k", b"x")
    assert len(clock.slept_s) == 3
    for slept_s, bound_s in zip(clock.slept_s, [1.0, 2.0, 3.0], strict=True):
        assert 0 <= slept_s <= bound_s
    setting.fail(Operation.GET, Fault.TORN_READ, Fault.TIMEOUT_BEFORE)
    assert bytes((await setting.store.get("k")).data) == b"x"


async def test_attempts_come_to_an_end(setting: Setting) -> None:
    setting.fail(Operation.PUT, *[Fault.ERROR] * 3, Fault.SLOW_DOWN)
    with pytest.raises(SlowDown):
        await setting.store.put("k", b"x")
    setting.fail(Operation.LIST, *[Fault.SLOW_DOWN] * 3, Fault.ERROR)
    with pytest.raises(StoreUnavailable):
        await setting.store.list("")


async def test_the_deadline_holds(clock: FakeClock) -> None:
    setting = Setting(clock, RetryPolicy(attempts_max=10**6, backoff=Backoff(1.0, 4.0), deadline_s=20.0))
    setting.plan.set_rates(FaultRates(error=1.0))
    with pytest.raises(StoreUnavailable):
        await setting.store.get("k")
    assert 10 < clock.monotonic_s() <= 20


async def test_refusals_are_not_repeated(setting: Setting, clock: FakeClock) -> None:
    etag = await setting.store.put("k", b"x")
    assert etag is not None
    with pytest.raises(AlreadyExists):
        await setting.store.put("k", b"x")
    with pytest.raises(Conflict):
        await setting.store.update("k", b"x", etag="wrong")
    with pytest.raises(NotFound):
        await setting.store.get("none")
    assert clock.slept_s == []


@pytest.mark.parametrize("data", [b"small", b"", LARGE])
async def test_a_put_that_happened_without_an_answer_is_recognised(setting: Setting, data: bytes) -> None:
    setting.fail(Operation.PUT, Fault.TIMEOUT_AFTER)
    etag = await setting.store.put("k", data)
    assert bytes((await setting.memory.get("k")).data) == data
    assert len(data) > 100 or etag == (await setting.memory.head("k")).etag


@pytest.mark.parametrize("theirs", [LARGE[:-1] + b"!", LARGE + b"!", LARGE[1:], b"short", b""])
@pytest.mark.parametrize("ours", [LARGE, b"ours"])
async def test_an_object_of_another_is_not_ours(setting: Setting, ours: bytes, theirs: bytes) -> None:
    await setting.memory.put("k", theirs)
    setting.fail(Operation.PUT, Fault.TIMEOUT_BEFORE)
    with pytest.raises(AlreadyExists):
        await setting.store.put("k", ours)


async def test_an_equal_object_counts_only_after_an_unknown_outcome(setting: Setting) -> None:
    await setting.memory.put("k", b"same")
    setting.fail(Operation.PUT, Fault.SLOW_DOWN)
    with pytest.raises(AlreadyExists):
        await setting.store.put("k", b"same")


async def test_an_update_that_happened_without_an_answer_is_recognised(setting: Setting) -> None:
    etag = await setting.store.put("k", b"one")
    assert etag is not None
    setting.fail(Operation.UPDATE, Fault.TIMEOUT_AFTER)
    assert await setting.store.update("k", b"two", etag=etag) == (await setting.memory.head("k")).etag
    setting.fail(Operation.UPDATE, Fault.TIMEOUT_BEFORE)
    with pytest.raises(Conflict):
        await setting.store.update("k", b"three", etag=etag)


@pytest.mark.parametrize(
    "faults",
    [
        [Fault.TIMEOUT_BEFORE, Fault.ERROR, Fault.ERROR, Fault.ERROR],
        [Fault.ERROR, Fault.TIMEOUT_BEFORE, Fault.SLOW_DOWN, Fault.SLOW_DOWN],
        [Fault.TIMEOUT_BEFORE] * 4,
    ],
)
async def test_an_unknown_outcome_stays_unknown(setting: Setting, faults: Sequence[Fault]) -> None:
    setting.fail(Operation.PUT, *faults)
    with pytest.raises(StoreTimeout):
        await setting.store.put("k", b"x")


async def test_whose_it_is_cannot_be_read(setting: Setting) -> None:
    setting.fail(Operation.PUT, Fault.TIMEOUT_AFTER)
    setting.fail(Operation.GET, *[Fault.ERROR] * 4)
    with pytest.raises(StoreTimeout):
        await setting.store.put("k", b"x")


async def test_a_refusal_after_an_unknown_outcome_leaves_it_unknown(clock: FakeClock) -> None:
    answers: list[StoreError] = [StoreTimeout("no answer"), StoreDenied("the key was revoked")]

    class Scripted(FaultyStore):
        async def put(self, key: str, data: object, *, overwrite: bool = False) -> str | None:
            raise answers.pop(0)

    setting = Setting(clock)
    scripted = Scripted(setting.memory, setting.plan, clock=clock)
    store = RetryingStore(scripted, POLICY, clock=clock, entropy=SeededEntropy(1))
    with pytest.raises(StoreTimeout) as caught:
        await store.put("k", b"x")
    assert isinstance(caught.value.__cause__, StoreDenied)
    answers[:] = [StoreDenied("not allowed")]
    with pytest.raises(StoreDenied):
        await store.put("k", b"x")


async def test_a_put_that_lands_late_is_success(setting: Setting) -> None:
    """The second attempt finds what the first one left, if it lands between them; or it is the one that counts."""
    for number in range(10):
        setting.fail(Operation.PUT, Fault.LATE_PUT)
        await setting.store.put(f"k{number}", LARGE)
    await setting.faulty.wait_late()
    for number in range(10):
        assert (await setting.memory.get(f"k{number}")).data == LARGE


async def test_each_attempt_has_its_time(clock: FakeClock) -> None:
    setting = Setting(clock, RetryPolicy(attempts_max=2, attempt_timeout_s=0.01, deadline_s=60.0))
    never = asyncio.Event()
    calls = 0

    class Hanging(FaultyStore):
        async def put(self, key: str, data: object, *, overwrite: bool = False) -> str | None:
            nonlocal calls
            calls += 1
            await never.wait()
            return None

    hanging = Hanging(setting.memory, setting.plan, clock=clock)
    policy = RetryPolicy(attempts_max=2, attempt_timeout_s=0.01)
    store = RetryingStore(hanging, policy, clock=clock, entropy=SeededEntropy(1))
    with pytest.raises(StoreTimeout, match="no answer within"):
        await store.put("k", b"x")
    assert calls == 2


async def test_being_cancelled_is_no_reason_to_retry(clock: FakeClock) -> None:
    setting = Setting(clock)
    started = asyncio.Event()

    class Hanging(FaultyStore):
        async def put(self, key: str, data: object, *, overwrite: bool = False) -> str | None:
            started.set()
            await asyncio.Event().wait()
            return None

    store = RetryingStore(
        Hanging(setting.memory, setting.plan, clock=clock), POLICY, clock=clock, entropy=SeededEntropy(1)
    )
    task = asyncio.create_task(store.put("k", b"x"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.slept_s == []


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_fails_no_write_is_wrong(clock: FakeClock, seed: int) -> None:
    """One of two writers to each key wins. Each learns the truth, or that nobody knows."""
    entropy = SeededEntropy(seed)
    memory = open_store("memory://", clock=clock, entropy=entropy, retry=None)
    rates = FaultRates(error=0.1, slow_down=0.1, timeout_before=0.1, timeout_after=0.15, torn_read=0.1, late_put=0.1)
    plan = FaultPlan(entropy.fork("faults"), rates, late_s_max=2.0)
    faulty = FaultyStore(memory, plan, clock=clock)
    writers = [
        RetryingStore(faulty, POLICY, clock=clock, entropy=entropy.fork(f"retry{number}")) for number in range(2)
    ]

    async def write(writer: int, key: str) -> object:
        try:
            return await writers[writer].put(key, f"{key} by {writer}".encode() * 30)
        except StoreError as error:
            return error

    keys = [f"k{number:02d}" for number in range(25)]
    results = [await asyncio.gather(write(0, key), write(1, key)) for key in keys]
    await faulty.wait_late()
    assert sum(plan.injected.values()) > 20
    for key, outcome in zip(keys, results, strict=True):
        stored = bytes((await memory.get(key)).data) if (await memory.list(key)).objects else b""
        for writer, result in enumerate(outcome):
            mine = stored == f"{key} by {writer}".encode() * 30
            if not isinstance(result, StoreError):
                assert mine
            elif isinstance(result, AlreadyExists):
                assert not mine
                assert stored
            else:
                assert not mine or isinstance(result, StoreTimeout)
