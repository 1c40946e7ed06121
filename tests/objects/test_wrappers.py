"""The wrappers: meter, latency model, faults. Each is a store, and they stack."""

import math
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry
from tests.fakes import FakeClock
from tests.objects.faulty_store import FaultyStore

from braidlog.cost.prices import S3_EXPRESS, S3_STANDARD
from braidlog.objects.faults import Fault, FaultPlan, FaultRates
from braidlog.objects.latency import PROFILES, SlowStore, latency_factor, latency_profile
from braidlog.objects.metered import MeteredStore, StoreMetrics
from braidlog.objects.open import open_store
from braidlog.objects.retries import RetryPolicy
from braidlog.objects.store import (
    AlreadyExists,
    NotFound,
    SlowDown,
    Store,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    TornRead,
)
from braidlog.objects.wrapper import Operation, coalesced_count
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import InvalidSetting


@pytest.fixture
def memory(clock: FakeClock, entropy: SeededEntropy) -> Store:
    return open_store("memory://", clock=clock, entropy=entropy, retry=None)


async def use_everything(store: Store) -> None:
    etag = await store.put("a", b"0123456789")
    assert etag is not None
    await store.update("a", b"9876543210", etag=etag)
    assert bytes((await store.get("a")).data) == b"9876543210"
    assert bytes(await store.get_range("a", 1, 3)) == b"87"
    assert [bytes(part) for part in await store.get_ranges("a", [(0, 1), (9, 10)])] == [b"9", b"0"]
    assert bytes((await store.get_tail("a", 2)).data) == b"10"
    assert (await store.head("a")).size == 10
    assert [meta.key for meta in (await store.list("", after=None, limit=10)).objects] == ["a"]
    with pytest.raises(AlreadyExists):
        await store.put("a", b"")
    await store.put("a", b"0123456789", overwrite=True)
    await store.delete(["a"])
    with pytest.raises(NotFound):
        await store.get("a")


async def test_all_wrappers_stack(clock: FakeClock, entropy: SeededEntropy) -> None:
    metrics = StoreMetrics(CollectorRegistry())
    wrap: list[Callable[[Store], Store]] = [
        lambda store: SlowStore(store, PROFILES["s3"], clock=clock, entropy=entropy),
        lambda store: FaultyStore(store, FaultPlan(entropy), clock=clock),
        lambda store: MeteredStore(store, metrics, clock=clock),
    ]
    store = open_store("memory://", clock=clock, entropy=entropy, wrap=wrap, retry=RetryPolicy())
    assert store.url == "memory://"
    await use_everything(store)
    await store.close()


async def test_the_meter_counts(memory: Store, clock: FakeClock) -> None:
    registry = CollectorRegistry()
    metered = MeteredStore(memory, StoreMetrics(registry), clock=clock, name="eu", price=S3_EXPRESS)
    await use_everything(metered)
    clock.advance(3600)
    statistics = metered.statistics()
    assert statistics.requests == {
        "put": 3,
        "update": 1,
        "get": 2,
        "get_range": 1,
        "get_ranges": 1,
        "get_tail": 1,
        "head": 1,
        "list": 1,
        "delete": 1,
    }
    assert statistics.errors == {"AlreadyExists": 1, "NotFound": 1}
    assert (statistics.upload_bytes, statistics.download_bytes) == (30, 10 + 2 + 2 + 2)
    usd = 5 * S3_EXPRESS.put_usd + 6 * S3_EXPRESS.get_usd + (30 * 0.0032 + 16 * 0.0006) / 2**30
    assert statistics.usd == pytest.approx(usd)
    assert statistics.usd_month == pytest.approx(usd * 730)

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"braidlog_store_{name}", {"store": "eu", **labels})

    assert sample("requests_total", operation="put") == 3
    assert sample("bytes_total", direction="upload") == 30
    assert sample("errors_total", operation="get", kind="NotFound") == 1
    assert sample("request_seconds_count", operation="get") == 2
    assert sample("usd_total") == pytest.approx(usd)
    with pytest.raises(TypeError):
        statistics.requests["put"] = 0  # type: ignore[index]


async def test_the_meter_sees_latency_and_every_attempt(clock: FakeClock, entropy: SeededEntropy) -> None:
    registry = CollectorRegistry()
    metrics = StoreMetrics(registry)
    plan = FaultPlan(entropy)
    plan.hang_s = 3.0
    meters: list[MeteredStore] = []

    def meter(store: Store) -> Store:
        meters.append(MeteredStore(store, metrics, clock=clock, price=S3_STANDARD))
        return meters[0]

    store = open_store(
        "memory://", clock=clock, entropy=entropy, wrap=[lambda inner: FaultyStore(inner, plan, clock=clock), meter]
    )
    plan.force(Operation.PUT, Fault.TIMEOUT_BEFORE)
    plan.force(Operation.PUT, Fault.SLOW_DOWN)
    await store.put("k", b"x")
    assert meters[0].statistics().requests["put"] == 3
    assert meters[0].statistics().errors == {"StoreTimeout": 1, "SlowDown": 1}
    labels = {"store": "main", "operation": "put"}
    assert registry.get_sample_value("braidlog_store_request_seconds_sum", labels) == pytest.approx(3.0)


def test_ranges_are_counted_as_they_are_fetched() -> None:
    mebibyte = 1 << 20
    assert coalesced_count([]) == 0
    assert coalesced_count([(0, 10), (20, 30)]) == 1
    assert coalesced_count([(5 * mebibyte, 6 * mebibyte), (0, 10)]) == 2
    assert coalesced_count([(0, 5 * mebibyte), (1, 2), (5 * mebibyte, 6 * mebibyte)]) == 1


def test_the_tails_of_the_latency_model() -> None:
    assert latency_factor(0.0) == pytest.approx(1.0)
    assert latency_factor(1.6449) == pytest.approx(2.0)
    assert latency_factor(2.3263) == pytest.approx(4.0)
    assert latency_factor(50.0) < 20
    entropy = SeededEntropy(3)
    draws = sorted(latency_factor(entropy.normal()) for _ in range(20_000))
    assert draws[10_000] == pytest.approx(1.0, rel=0.05)
    assert draws[19_000] == pytest.approx(2.0, rel=0.05)
    assert draws[19_800] == pytest.approx(4.0, rel=0.15)


async def test_a_slow_store_takes_its_time(memory: Store, clock: FakeClock) -> None:
    slow = SlowStore(memory, PROFILES["s3"], clock=clock, entropy=SeededEntropy(5))
    for number in range(201):
        await slow.put(f"{number}", bytes(90_000))
    puts = sorted(clock.slept_s)
    assert puts[100] == pytest.approx(0.121, rel=0.1)
    clock.slept_s.clear()
    for number in range(201):
        await slow.get(f"{number}")
    assert sorted(clock.slept_s)[100] == pytest.approx(0.015 + 90_000 / 600e6, rel=0.1)
    assert math.isclose(clock.monotonic_s(), sum(puts) + sum(clock.slept_s))


async def test_the_same_seed_gives_the_same_latency(memory: Store) -> None:
    histories = []
    for _ in range(2):
        clock = FakeClock()
        slow = SlowStore(memory, latency_profile("s3-express"), clock=clock, entropy=SeededEntropy("same"))
        for number in range(20):
            await slow.put(f"{number}", b"x", overwrite=True)
        histories.append(clock.slept_s)
    assert histories[0] == histories[1]


def test_an_unknown_profile() -> None:
    with pytest.raises(InvalidSetting) as caught:
        latency_profile("floppy")
    assert "s3-express" in caught.value.help


@pytest.mark.parametrize(
    ("fault", "kind", "happens"),
    [
        (Fault.ERROR, StoreUnavailable, False),
        (Fault.SLOW_DOWN, SlowDown, False),
        (Fault.TIMEOUT_BEFORE, StoreTimeout, False),
        (Fault.TIMEOUT_AFTER, StoreTimeout, True),
    ],
)
async def test_faults_of_a_put(
    memory: Store, clock: FakeClock, fault: Fault, kind: type[StoreError], happens: bool
) -> None:
    plan = FaultPlan(SeededEntropy(1))
    faulty = FaultyStore(memory, plan, clock=clock)
    plan.force(Operation.PUT, fault)
    with pytest.raises(kind):
        await faulty.put("k", b"x")
    assert bool((await memory.list("")).objects) is happens
    assert plan.injected[fault] == 1


async def test_a_late_put_lands_when_its_caller_has_given_up(memory: Store, clock: FakeClock) -> None:
    plan = FaultPlan(SeededEntropy(1))
    faulty = FaultyStore(memory, plan, clock=clock)
    plan.force(Operation.PUT, Fault.LATE_PUT)
    buffer = bytearray(b"original")
    with pytest.raises(StoreTimeout):
        await faulty.put("k", buffer)
    buffer[:] = b"reused!!"
    await faulty.wait_late()
    assert bytes((await memory.get("k")).data) == b"original"
    plan.force(Operation.PUT, Fault.LATE_PUT)
    with pytest.raises(StoreTimeout):
        await faulty.put("k", b"too late: the key is taken")
    await faulty.wait_late()
    assert bytes((await memory.get("k")).data) == b"original"


async def test_late_puts_do_not_outlive_the_store(memory: Store, clock: FakeClock) -> None:
    plan = FaultPlan(SeededEntropy(1))
    faulty = FaultyStore(memory, plan, clock=clock)
    plan.force(Operation.PUT, Fault.LATE_PUT)
    with pytest.raises(StoreTimeout):
        await faulty.put("k", b"x")
    await faulty.close()


async def test_rates_by_operation_can_be_switched(memory: Store, clock: FakeClock) -> None:
    plan = FaultPlan(SeededEntropy(1))
    faulty = FaultyStore(memory, plan, clock=clock)
    await faulty.put("k", b"x")
    plan.set_rates(FaultRates(torn_read=1.0), Operation.GET, Operation.PUT)
    with pytest.raises(TornRead):
        await faulty.get("k")
    await faulty.put("l", b"a put cannot be a torn read")
    await faulty.get_tail("k", 1)
    plan.calm()
    await faulty.get("k")


async def test_the_same_seed_gives_the_same_faults(memory: Store, clock: FakeClock) -> None:
    async def history() -> list[str]:
        plan = FaultPlan(
            SeededEntropy("x"), FaultRates(error=0.2, slow_down=0.2, timeout_before=0.2, timeout_after=0.2)
        )
        faulty = FaultyStore(memory, plan, clock=clock)
        names = []
        for _ in range(50):
            try:
                await faulty.put("k", b"x", overwrite=True)
                names.append("fine")
            except StoreError as error:
                names.append(type(error).__name__)
        return names

    first = await history()
    assert first == await history()
    assert {"fine", "StoreUnavailable", "SlowDown", "StoreTimeout"} == set(first)


def test_impossible_rates() -> None:
    for rates in [{"error": -0.1}, {"error": 0.6, "slow_down": 0.6}]:
        with pytest.raises(InvalidSetting):
            FaultRates(**rates)
