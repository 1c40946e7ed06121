"""Remote calls: many at once, typed errors, deadlines, broken connections, limits."""

import asyncio
import struct
from collections.abc import AsyncIterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import FakeClock

from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import (
    BraidError,
    ControlUnavailable,
    DeadlineExceeded,
    Fenced,
    InvalidSetting,
    Remedy,
)
from braidlog.runtime.rpc.addresses import parse_address
from braidlog.runtime.rpc.client import RpcClient
from braidlog.runtime.rpc.failures import RemoteFailure
from braidlog.runtime.rpc.frames import HEAD, HELLO_KIND, PROOF_KIND, encode_frame
from braidlog.runtime.rpc.proof import client_proof, cluster_secret
from braidlog.runtime.rpc.server import RpcServer
from braidlog.sim.virtual.clock import SimClock
from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.sim.virtual.network import Network


class PickyError(BraidError):
    """Wants more than its base does."""

    remedy = Remedy.REFRESH

    def __init__(self, number: int, colour: str) -> None:
        super().__init__(f"{number} {colour}", help="paint it")


class Service:
    """What the tests call."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.gate = asyncio.Event()
        self.timeout_s: float | None = None

    async def echo(self, body: bytes, timeout_s: float | None) -> bytes:
        self.timeout_s = timeout_s
        return body

    async def wait(self, body: bytes, timeout_s: float | None) -> bytes:
        self.started.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return body

    async def fail(self, body: bytes, timeout_s: float | None) -> bytes:
        match body:
            case b"fenced":
                raise Fenced("too late", help="stop")
            case b"picky":
                raise PickyError(3, "green")
            case _:
                raise ZeroDivisionError("by nothing")


@pytest.fixture
async def service() -> Service:
    return Service()


@pytest.fixture
async def server(service: Service) -> AsyncIterator[RpcServer]:
    server = RpcServer(
        {"echo": service.echo, "wait": service.wait, "fail": service.fail},
        message_bytes_max=1_000_000,
        calls_in_flight_max=50,
    )
    await server.start("127.0.0.1:0")
    yield server
    await server.close()


def connect(address: str) -> RpcClient:
    return RpcClient(address, FakeClock(), SeededEntropy(1))


@pytest.fixture
async def client(server: RpcServer) -> AsyncIterator[RpcClient]:
    client = connect(server.address)
    yield client
    await client.close()


async def test_many_calls_share_a_connection(client: RpcClient, server: RpcServer) -> None:
    bodies = [bytes([number]) * (number * 3000) for number in range(40)]
    assert await asyncio.gather(*(client.call("echo", body) for body in bodies)) == bodies
    assert len(server.connections) == 1


async def test_answers_need_not_keep_the_order(client: RpcClient, service: Service) -> None:
    slow = asyncio.create_task(client.call("wait", b"slow"))
    await service.started.wait()
    assert await client.call("echo", b"quick") == b"quick"
    service.gate.set()
    assert await slow == b"slow"


async def test_a_unix_socket_serves_too(tmp_path: Path, service: Service) -> None:
    server = RpcServer({"echo": service.echo})
    path = f"{tmp_path}/s"
    assert await server.start(f"unix:{path}") == path
    client = connect(path)
    assert await client.call("echo", b"x", 5.0) == b"x"
    assert service.timeout_s == 5.0
    await client.close()
    await server.close()
    assert not Path(path).exists()


async def test_errors_arrive_as_what_they_were(client: RpcClient) -> None:
    with pytest.raises(Fenced, match="too late") as fenced:
        await client.call("fail", b"fenced")
    assert fenced.value.help == "stop"
    with pytest.raises(PickyError, match="3 green") as picky:
        await client.call("fail", b"picky")
    assert (picky.value.help, picky.value.remedy) == ("paint it", Remedy.REFRESH)
    with pytest.raises(RemoteFailure, match="ZeroDivisionError"):
        await client.call("fail", b"")
    with pytest.raises(InvalidSetting, match="no method"):
        await client.call("nothing", b"")


async def test_a_deadline_cancels_the_call_on_the_other_side(client: RpcClient, service: Service) -> None:
    await client.call("echo", b"")  # so that the time is not over before there is a connection
    with pytest.raises(DeadlineExceeded):
        await client.call("wait", b"", 0.02)
    await service.cancelled.wait()


async def test_a_cancelled_caller_cancels_the_call(client: RpcClient, service: Service) -> None:
    task = asyncio.create_task(client.call("wait", b""))
    await service.started.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await service.cancelled.wait()


async def test_a_client_that_goes_away_cancels_its_calls(server: RpcServer, service: Service) -> None:
    client = connect(server.address)
    task = asyncio.create_task(client.call("wait", b""))
    await service.started.wait()
    await client.close()
    with pytest.raises(DeadlineExceeded):
        await task
    await service.cancelled.wait()
    with pytest.raises(ControlUnavailable):
        await client.call("echo", b"")


async def test_a_broken_connection_is_an_unknown_outcome_and_is_made_again(
    client: RpcClient, server: RpcServer, service: Service
) -> None:
    task = asyncio.create_task(client.call("wait", b""))
    await service.started.wait()
    for connection in list(server.connections):
        connection.abort()
    with pytest.raises(DeadlineExceeded):
        await task
    assert await client.call("echo", b"again") == b"again"


async def test_a_connection_that_is_lost_before_it_is_used_is_no_connection(
    client: RpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_connect = client._connect

    async def connect_and_lose() -> object:
        connection = await really_connect()
        connection.abort()
        while not connection.lost:
            await asyncio.sleep(0)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(client, "_connect", connect_and_lose)
        with pytest.raises(ControlUnavailable, match="broke"):
            await client.call("echo", b"", 1.0)
    assert await client.call("echo", b"again") == b"again"


async def test_nobody_there_is_told_apart_from_no_answer(tmp_path: Path) -> None:
    client = connect(f"{tmp_path}/nobody")
    with pytest.raises(ControlUnavailable):
        await client.call("echo", b"", 0.05)
    await client.close()


async def test_a_server_that_comes_late_is_found(tmp_path: Path, service: Service) -> None:
    path = f"{tmp_path}/late"
    client = connect(path)
    task = asyncio.create_task(client.call("echo", b"x", 60.0))
    await asyncio.sleep(0)
    server = RpcServer({"echo": service.echo})
    await server.start(path)
    assert await task == b"x"
    await client.close()
    await server.close()


async def test_too_many_calls_are_refused_before_they_start(client: RpcClient, service: Service) -> None:
    waiting = [asyncio.create_task(client.call("wait", b"")) for _ in range(50)]
    await service.started.wait()
    with pytest.raises(ControlUnavailable):
        await client.call("echo", b"")
    service.gate.set()
    assert await asyncio.gather(*waiting) == [b""] * 50
    assert await client.call("echo", b"y") == b"y"


async def test_a_frame_of_impossible_length_closes_the_connection(server: RpcServer) -> None:
    host, port = parse_address(server.address)
    for head in (struct.pack(">IBQ", 2**31, 1, 1), struct.pack(">IBQ", 0, 1, 1), struct.pack(">IBQ", 9, 77, 1)):
        reader, writer = await asyncio.open_connection(str(host), int(port))
        writer.write(head)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_an_impossible_length_behind_a_whole_frame_closes_the_connection(server: RpcServer) -> None:
    host, port = parse_address(server.address)
    reader, writer = await asyncio.open_connection(str(host), int(port))
    whole = struct.pack(">IBQIB", 9 + 5 + 4 + 3, 1, 7, 0, 4) + b"echo" + b"abc"
    head = struct.pack(">IBQ", 2**31, 1, 8)
    writer.write(whole + head[:4])
    assert await reader.readexactly(13 + 3)
    writer.write(head[4:])
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_frames_may_arrive_byte_by_byte(server: RpcServer) -> None:
    host, port = parse_address(server.address)
    reader, writer = await asyncio.open_connection(str(host), int(port))
    call = struct.pack(">IBQIB", 9 + 5 + 4 + 3, 1, 7, 0, 4) + b"echo" + b"abc"
    for byte in call * 2:
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
    answer = struct.pack(">IBQ", 9 + 3, 2, 7) + b"abc"
    assert await reader.readexactly(2 * len(answer)) == answer * 2
    writer.close()
    await writer.wait_closed()


async def test_an_answer_that_is_too_long_is_an_error(service: Service) -> None:
    server = RpcServer({"echo": service.echo}, message_bytes_max=2000)

    async def inflate(body: bytes, timeout_s: float | None) -> bytes:
        return body * 1000

    server.handlers["inflate"] = inflate
    await server.start("127.0.0.1:0")
    client = connect(server.address)
    with pytest.raises(RemoteFailure, match="too long"):
        await client.call("inflate", b"1234567")
    await client.close()
    await server.close()


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:99999", "host:x"])
def test_a_wrong_address_is_an_invalid_setting(address: str) -> None:
    with pytest.raises(InvalidSetting):
        parse_address(address)


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("127.0.0.1:9", ("127.0.0.1", 9)),
        ("tcp://localhost:9", ("localhost", 9)),
        ("[::1]:9", ("::1", 9)),
        ("/run/s", "/run/s"),
        ("unix:/run/s", "/run/s"),
        ("unix:///run/s", "/run/s"),
    ],
)
def test_addresses(address: str, parsed: object) -> None:
    assert parse_address(address) == parsed


async def read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_calls_that_are_received_in_part_are_bounded_together(service: Service) -> None:
    server = RpcServer({"echo": service.echo}, unfinished_bytes_max=50_000)
    await server.start("127.0.0.1:0")
    host, port = server.address.split(":")
    writers = []
    readers = []
    for sent_bytes in (40_000, 15_000):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(struct.pack(">IBQ", 90_000, 1, 1) + bytes(sent_bytes))
        readers.append(reader)
        writers.append(writer)
    assert await read_to_the_end(readers[0]) == b"", "whoever has sent most is closed"
    client = connect(server.address)
    assert await client.call("echo", b"x" * 20_000) == b"x" * 20_000
    assert server.unfinished_bytes <= 50_000
    await client.close()
    for writer in writers:
        writer.close()
    await server.close()


async def test_connections_past_the_limit_are_closed(service: Service) -> None:
    server = RpcServer({"echo": service.echo}, connections_max=1)
    await server.start("127.0.0.1:0")
    client = connect(server.address)
    assert await client.call("echo", b"x") == b"x"
    host, port = server.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    assert await read_to_the_end(reader) == b""
    writer.close()
    assert await client.call("echo", b"y") == b"y"
    await client.close()
    await server.close()


async def test_calls_may_be_held_to_less_than_answers(service: Service) -> None:
    server = RpcServer({"echo": service.echo}, call_bytes_max=1_000)

    async def inflate(body: bytes, timeout_s: float | None) -> bytes:
        return body * 1000

    server.handlers["inflate"] = inflate
    await server.start("127.0.0.1:0")
    client = connect(server.address)
    assert len(await client.call("inflate", bytes(100))) == 100_000
    with pytest.raises(DeadlineExceeded):
        await client.call("echo", bytes(2_000))
    await client.close()
    await server.close()


async def test_whoever_does_not_take_its_answers_is_closed(service: Service) -> None:
    server = RpcServer({"echo": service.echo}, unsent_bytes_max=1_000_000)

    async def inflate(body: bytes, timeout_s: float | None) -> bytes:
        return bytes(100_000_000)  # more than the system has room for

    server.handlers["inflate"] = inflate
    await server.start("127.0.0.1:0")
    host, port = server.address.split(":")
    call = struct.pack(">IBQIB", 9 + 5 + 7, 1, 1, 0, 7) + b"inflate"
    deaf = [await asyncio.open_connection(host, int(port), limit=1_000) for _ in range(2)]
    for _, writer in deaf:
        writer.write(call)
    client = connect(server.address)
    while len(server.connections) > 1:
        assert await client.call("echo", b"x") == b"x"
    assert not server.slow
    await client.close()
    for _, writer in deaf:
        writer.close()
    await server.close()


@pytest.mark.parametrize("timeout_s", [0.5, 4.5])
def test_a_machine_that_is_gone_does_not_keep_a_client_from_the_next_address(timeout_s: float) -> None:
    """It refuses nothing and answers nothing, as long as one waits."""
    loop = VirtualLoop(SeededEntropy(1))  # type: ignore[abstract]
    loop.network = Network(loop, SeededEntropy(1))
    loop.network.block("client", "gone")

    async def run() -> None:
        server = RpcServer({"echo": Service().echo})
        await server.start("here:1")
        client = RpcClient("gone:1,here:1", SimClock(loop), SeededEntropy(1))
        answers = [await _call_or_none(client, timeout_s) for _ in range(3)]
        assert answers[-1] == b"x"
        await client.close()
        await server.close()

    loop.run_until_complete(run())


async def _call_or_none(client: RpcClient, timeout_s: float) -> bytes | None:
    try:
        return await client.call("echo", b"x", timeout_s)
    except ControlUnavailable:
        return None


# ── the cluster's secret ──

SECRET = b"a secret of the whole cluster"


async def served(secret: bytes | None) -> RpcServer:
    async def echo(body: bytes, _timeout_s: float | None) -> bytes:
        return body

    server = RpcServer({"echo": echo}, secret=secret)
    await server.start("127.0.0.1:0")
    return server


def caller(server: RpcServer, secret: bytes | None, patience_s: float = 60.0) -> RpcClient:
    return RpcClient(server.address, SystemClock(), SeededEntropy(1), connect_timeout_s=patience_s, secret=secret)


async def test_both_sides_prove_the_cluster_secret_before_any_call() -> None:
    server = await served(SECRET)
    client = caller(server, SECRET)
    assert await client.call("echo", b"x" * 10_000) == b"x" * 10_000
    assert server.unproven_count == 0
    await client.close()
    await server.close()


async def test_a_caller_without_the_secret_is_cut_off() -> None:
    server = await served(SECRET)
    client = caller(server, None)
    with pytest.raises(DeadlineExceeded):
        await client.call("echo", b"x")
    assert (server.unproven_count, server.calls_in_flight) == (1, 0)
    await client.close()
    await server.close()


@pytest.mark.parametrize(
    ("servers", "clients"), [(SECRET, b"another secret, just as long"), (None, SECRET)], ids=["other", "none"]
)
async def test_a_caller_with_a_secret_trusts_no_server_without_it(servers: bytes | None, clients: bytes) -> None:
    server = await served(servers)
    client = caller(server, clients, patience_s=0.1)  # it never succeeds, however long it tries
    with pytest.raises(ControlUnavailable):
        await client.call("echo", b"x")
    assert server.calls_in_flight == 0
    await client.close()
    await server.close()


async def test_a_proof_cannot_be_replayed_or_reflected() -> None:
    """What one connection has shown is worth nothing on another, and the server's own proof is not the caller's."""
    server = await served(SECRET)
    host, port = server.address.split(":")

    async def greet() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"".join(encode_frame(HELLO_KIND, 0, bytes(32))))
        challenge = await reader.readexactly(HEAD.size + 64)
        return reader, writer, challenge[HEAD.size :]

    _, first, challenge = await greet()
    proof = client_proof(SECRET, bytes(32), challenge[:32])
    for wrong in (proof, challenge[32:]):  # of the other connection; of the server itself
        reader, writer, _ = await greet()
        writer.write(b"".join(encode_frame(PROOF_KIND, 0, wrong)))
        assert await reader.read() == b""
        writer.close()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"".join(encode_frame(HELLO_KIND, 0, bytes(1000))))  # longer than a stranger may be
    assert await reader.read() == b""
    for each in (first, writer):
        each.close()
    await server.close()


async def test_a_stranger_is_refused_once_whatever_else_it_has_sent() -> None:
    """Each refusal is logged. Thousands of frames in one packet must not cost a stranger's host thousands of lines."""
    server = await served(SECRET)
    host, port = server.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(1_000 * b"".join(encode_frame(PROOF_KIND, 0, b"")))
    with suppress(ConnectionResetError):  # if it left before it had read everything
        assert await reader.read() == b""
    assert server.unproven_count == 1
    writer.close()
    await server.close()


async def test_strangers_that_prove_nothing_keep_no_node_out() -> None:
    server = await served(SECRET)
    server.connections_max = 2
    host, port = server.address.split(":")
    strangers = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
    clients = [caller(server, SECRET) for _ in range(2)]
    for client in clients:
        assert await client.call("echo", b"x") == b"x"
    for reader, writer in strangers:
        assert await reader.read() == b""
        writer.close()
    late_reader, late = await asyncio.open_connection(host, int(port))
    assert await late_reader.read() == b"", "nobody who has proven itself goes for another"
    assert [await client.call("echo", b"y") for client in clients] == [b"y", b"y"]
    late.close()
    for client in clients:
        await client.close()
    await server.close()


async def test_a_server_that_does_not_answer_the_greeting_is_left() -> None:
    """Otherwise every attempt would leave an open connection behind."""
    greeted, left = asyncio.Event(), asyncio.Event()

    async def be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(HEAD.size + 32)
        greeted.set()
        await reader.read()  # until the caller has left
        left.set()
        writer.close()

    server = await asyncio.start_server(be_silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = RpcClient(f"127.0.0.1:{port}", SystemClock(), SeededEntropy(1), connect_timeout_s=600, secret=SECRET)
    call = asyncio.create_task(client.call("echo", b"x"))
    async with asyncio.timeout(60):
        await greeted.wait()
        call.cancel()
        await left.wait()
    await client.close()
    server.close()


@pytest.mark.parametrize(
    ("address", "secret", "warnings"), [("10.0.0.5:1", None, 1), ("10.0.0.5:1", SECRET, 0), ("127.0.0.1:1", None, 0)]
)
def test_a_port_without_a_secret_beyond_loopback_is_warned_of(
    address: str, secret: bytes | None, warnings: int, logs: list[MutableMapping[str, Any]]
) -> None:
    loop = VirtualLoop(SeededEntropy(1))  # type: ignore[abstract]
    loop.network = Network(loop, SeededEntropy(1))
    loop.run_until_complete(RpcServer({}, secret=secret).start(address))
    assert [line["event"] for line in logs] == ["anyone who reaches this port may call"] * warnings


async def test_the_secret_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    monkeypatch.setenv("BRAIDLOG_CLUSTER_SECRET_FILE", str(path))
    assert cluster_secret() == SECRET
    server = await served(None)
    client = caller(server, None)
    assert await client.call("echo", b"x") == b"x"
    assert server.secret == SECRET
    await client.close()
    await server.close()
    path.write_bytes(b"short")
    with pytest.raises(InvalidSetting, match="too short") as told:
        cluster_secret()
    assert "short" not in (told.value.help or "")
    monkeypatch.setenv("BRAIDLOG_CLUSTER_SECRET_FILE", str(tmp_path / "missing"))
    with pytest.raises(InvalidSetting, match="cannot be read"):
        cluster_secret()
