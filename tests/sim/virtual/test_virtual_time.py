"""The simulator's ground: virtual time, processes that die and sleep, and a network that loses things."""

import asyncio

import pytest

from braidlog.objects.store import AlreadyExists, NotFound, SlowDown, StoreTimeout
from braidlog.runtime.entropy import SeededEntropy
from braidlog.sim.virtual.clock import SimClock
from braidlog.sim.virtual.loop import Deadlock, Runaway, VirtualLoop
from braidlog.sim.virtual.network import RESET_AFTER_S, Network
from braidlog.sim.virtual.process import Process
from braidlog.sim.virtual.store import Bucket, SimStore, StoreWeather


def make_loop() -> VirtualLoop:
    loop = VirtualLoop(SeededEntropy(1))  # type: ignore[abstract]
    loop.network = Network(loop, SeededEntropy(1))
    return loop


def test_an_hour_passes_at_once() -> None:
    loop = make_loop()
    loop.run_until_complete(asyncio.sleep(3600))
    assert loop.time() == 3600


def test_what_goes_on_for_ever_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidlog.sim.virtual.loop.STEPS_MAX", 1000)

    async def spin() -> None:
        while True:
            await asyncio.sleep(0.001)

    loop = make_loop()
    with pytest.raises(Runaway):
        loop.run_until_complete(spin())
    loop.close()


def test_what_can_never_go_on_is_told() -> None:
    loop = make_loop()
    with pytest.raises(Deadlock):
        loop.run_until_complete(loop.create_future())


def test_a_killed_process_does_nothing_more_and_a_paused_one_does_it_later() -> None:
    loop = make_loop()
    seen: list[tuple[str, float]] = []

    async def tick(name: str) -> None:
        while True:
            await asyncio.sleep(1.0)
            seen.append((name, loop.time()))

    killed, paused = Process("killed", "a"), Process("paused", "b")
    loop.spawn_in(killed, tick("killed"))
    loop.spawn_in(paused, tick("paused"))

    async def world() -> None:
        await asyncio.sleep(1.5)
        killed.kill()
        paused.is_paused = True
        await asyncio.sleep(3.0)
        loop.resume(paused)
        await asyncio.sleep(0.1)

    loop.run_until_complete(world())
    assert seen == [("killed", 1.0), ("paused", 1.0), ("paused", 4.5)]
    loop.close()


def test_each_process_has_its_own_wall_clock_and_one_time() -> None:
    loop = make_loop()
    early, late = Process("early", "a"), Process("late", "b")
    late.skew_ms = 5000
    assert SimClock(loop, late).wall_ms() - SimClock(loop, early).wall_ms() == 5000
    assert SimClock(loop, late).monotonic_s() == SimClock(loop, early).monotonic_s()


def test_blocking_work_of_a_killed_process_is_done_as_a_whole_or_not_at_all() -> None:
    outcomes = set()
    for seed in range(20):
        loop = VirtualLoop(SeededEntropy(seed))  # type: ignore[abstract]
        process = Process("p", "a")
        done: list[int] = []
        told: list[bool] = []

        async def work(done: list[int] = done, told: list[bool] = told) -> None:
            await asyncio.get_running_loop().run_in_executor(None, done.append, 1)
            told.append(True)

        loop.spawn_in(process, work())
        loop.call_later(0.0001, process.kill)
        loop.run_until_complete(asyncio.sleep(1))
        assert not told
        outcomes.add(len(done))
        loop.close()
    assert outcomes == {0, 1}


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())  # type: ignore[attr-defined]


class Collect(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""
        self.lost: Exception | str | None = "no"

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc


def connected(loop: VirtualLoop) -> tuple[Process, asyncio.Transport, Collect]:
    server = Process("server", "far")

    async def serve() -> None:
        await asyncio.get_running_loop().create_server(Echo, "far", 1)

    async def connect() -> tuple[asyncio.Transport, Collect]:
        await asyncio.sleep(0.01)
        return await asyncio.get_running_loop().create_connection(Collect, "far", 1)  # type: ignore[return-value]

    loop.spawn_in(server, serve())
    transport, protocol = loop.run_until_complete(connect())
    return server, transport, protocol


def test_bytes_arrive_in_order_whatever_is_lost_on_the_way() -> None:
    loop = make_loop()
    _, transport, protocol = connected(loop)
    assert loop.network is not None
    loop.network.weather.loss = 0.5
    for letter in b"abcdefghij":
        transport.write(bytes([letter]))
    loop.run_until_complete(asyncio.sleep(600))
    assert protocol.received == b"ABCDEFGHIJ"


def test_behind_a_one_way_partition_bytes_wait_or_the_connection_breaks() -> None:
    for heal_after_s, expected in ((5.0, b"X"), (RESET_AFTER_S + 10, b"")):
        loop = make_loop()
        _, transport, protocol = connected(loop)
        assert loop.network is not None
        loop.network.block("client", "far")
        transport.write(b"x")
        loop.run_until_complete(asyncio.sleep(heal_after_s))
        assert protocol.received == b""
        loop.network.heal()
        loop.run_until_complete(asyncio.sleep(1))
        assert protocol.received == expected
        assert (protocol.lost == "no") == bool(expected)


def test_the_peers_of_a_killed_process_hear_of_it() -> None:
    loop = make_loop()
    server, _, protocol = connected(loop)
    server.kill()
    loop.run_until_complete(asyncio.sleep(1))
    assert isinstance(protocol.lost, ConnectionResetError)


def test_nobody_listens_after_a_kill() -> None:
    loop = make_loop()
    server, _, _ = connected(loop)
    server.kill()
    with pytest.raises(ConnectionRefusedError):
        loop.run_until_complete(loop.create_connection(Collect, "far", 1))


def test_a_put_may_land_long_after_its_caller_gave_up() -> None:
    loop = make_loop()
    bucket = Bucket(loop)
    weather = StoreWeather(late_put=1.0)
    store = SimStore(bucket, loop, SeededEntropy(3), weather)
    with pytest.raises(StoreTimeout):
        loop.run_until_complete(store.put("a", b"1"))
    assert "a" not in bucket.objects
    loop.run_until_complete(asyncio.sleep(200))
    assert bucket.objects["a"].data == b"1"
    weather.late_put = 0.0
    with pytest.raises(AlreadyExists):
        loop.run_until_complete(store.put("a", b"2"))


def test_a_store_that_refuses_has_done_nothing() -> None:
    loop = make_loop()
    bucket = Bucket(loop)
    store = SimStore(bucket, loop, SeededEntropy(3), StoreWeather(slow_down=1.0))
    with pytest.raises(SlowDown):
        loop.run_until_complete(store.put("a", b"1"))
    assert not bucket.objects
    calm = SimStore(bucket, loop, SeededEntropy(3), StoreWeather())
    with pytest.raises(NotFound):
        loop.run_until_complete(calm.get("a"))
