"""A simulated network: delay, loss, one-way partitions, connections that break.

Streams behave like TCP: bytes arrive in order or not at all. Lost bytes are sent again and arrive late. Behind a
partition they wait, and if that takes too long, the connection is reset.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from braidlog.runtime.entropy import Entropy
from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.sim.virtual.process import CURRENT, Process

CLIENT_HOST = "client"
RETRANSMIT_S = 0.2
RESET_AFTER_S = 30.0
"""Both ends give up a stream whose bytes were stuck for so long."""
CONNECT_TIMEOUT_S = 10.0
WRITE_HIGH_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class Weather:
    """How the network behaves now."""

    delay_s_min: float = 0.0001
    delay_s_max: float = 0.002
    loss: float = 0.0
    """The share of segments that are lost and sent again."""


class Network:
    def __init__(self, loop: VirtualLoop, entropy: Entropy) -> None:
        self._loop = loop
        self._entropy = entropy.fork("network")
        self.weather = Weather()
        self._blocked: dict[tuple[str, str], None] = {}
        self._listeners: dict[tuple[str, int], SimServer] = {}
        self._streams: dict[_Pipe, None] = {}
        self._next_port = 40_000

    # ── faults ──

    def block(self, source: str, destination: str) -> None:
        """Block all bytes from one host to another, in this direction only."""
        self._blocked[source, destination] = None

    def heal(self) -> None:
        self._blocked.clear()
        for pipe in list(self._streams):
            pipe.flush()

    def is_blocked(self, source: str, destination: str) -> bool:
        return (source, destination) in self._blocked

    def delay_s(self) -> float:
        weather = self.weather
        delay_s = self._entropy.uniform(weather.delay_s_min, weather.delay_s_max)
        resend_s = RETRANSMIT_S
        while weather.loss and self._entropy.uniform(0.0, 1.0) < weather.loss:
            delay_s += resend_s
            resend_s *= 2
        return delay_s

    # ── sockets ──

    def listen(self, factory: Callable[[], Any], host: str, port: int, *, start_serving: bool) -> "SimServer":
        process = CURRENT.get()
        if port == 0:
            port, self._next_port = self._next_port, self._next_port + 1
        known = self._listeners.get((host, port))
        if known is not None and known.is_open:
            raise OSError(98, f"{host}:{port} is in use")
        server = SimServer(self, factory, host, port, process)
        server.serving = start_serving
        self._listeners[host, port] = server
        if process is not None:
            process.on_kill.append(server.close)
        return server

    def close_listener(self, host: str, port: int) -> None:
        """Close the socket of a process that ends on its own."""
        if (server := self._listeners.get((host, port))) is not None:
            server.close()

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        process = CURRENT.get()
        source = process.host if process is not None else CLIENT_HOST
        waited_s = 0.0
        while self.is_blocked(source, host) or self.is_blocked(host, source):
            await asyncio.sleep(0.5)
            waited_s += 0.5
            if waited_s >= CONNECT_TIMEOUT_S:
                raise TimeoutError(f"no answer from {host}:{port}")
        await asyncio.sleep(self.delay_s() + self.delay_s())
        server = self._listeners.get((host, port))
        if server is None or not server.is_open or not server.serving:
            raise ConnectionRefusedError(111, f"nobody listens on {host}:{port}")
        here = SimTransport(self._loop, process, source)
        there = SimTransport(self._loop, server.process, host)
        here.pipe = _Pipe(self, here, there)
        there.pipe = _Pipe(self, there, here)
        for transport in (here, there):
            self._streams[transport.pipe] = None
            if transport.process is not None:
                transport.process.on_kill.append(transport.died)
        protocol = factory()
        here.protocol = protocol
        there.protocol = server.factory()
        there.peer_host = source
        here.peer_host = host
        there.call(there.protocol.connection_made, there)
        protocol.connection_made(here)
        return here, protocol

    def forget(self, pipe: "_Pipe") -> None:
        self._streams.pop(pipe, None)

    def call_after(self, delay_s: float, transport: "SimTransport", function: Callable[..., Any], *args: Any) -> None:
        context = transport.process.context if transport.process is not None else None
        self._loop.call_later(delay_s, function, *args, context=context)

    def toss(self) -> bool:
        return self._entropy.below(2) == 0

    @property
    def now_s(self) -> float:
        return self._loop.time()


class SimServer:
    """The server that `create_server` returns."""

    def __init__(
        self, network: Network, factory: Callable[[], Any], host: str, port: int, process: Process | None
    ) -> None:
        self._network = network
        self.factory = factory
        self._address = (host, port)
        self.process = process
        self.is_open = True
        self.serving = False

    @property
    def sockets(self) -> list["SimServer"]:
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return self._address

    async def start_serving(self) -> None:
        self.serving = True

    def close(self) -> None:
        self.is_open = False

    async def wait_closed(self) -> None:
        pass


class _Pipe:
    """One direction of a connection: bytes on their way, in order."""

    def __init__(self, network: Network, source: "SimTransport", sink: "SimTransport") -> None:
        self._network = network
        self._source = source
        self._sink = sink
        self._queue: deque[bytes | None] = deque()
        """None is the end of the stream."""
        self._busy_until_s = 0.0
        self._on_the_way = 0
        self.queued_bytes = 0

    def send(self, data: bytes | None) -> None:
        self._queue.append(data)
        self.queued_bytes += len(data) if data is not None else 0
        if self._network.is_blocked(self._source.host, self._sink.host):
            self._network.call_after(RESET_AFTER_S, self._source, self._give_up, data)
        else:
            self.flush()

    def flush(self) -> None:
        """Send everything that waits, unless the direction is blocked."""
        if self._network.is_blocked(self._source.host, self._sink.host):
            return
        for _ in range(len(self._queue) - self._on_the_way):
            now_s = self._network.now_s
            self._busy_until_s = max(self._busy_until_s, now_s + self._network.delay_s())
            self._on_the_way += 1
            self._network.call_after(self._busy_until_s - now_s, self._sink, self._arrive)

    def _give_up(self, data: bytes | None) -> None:
        if self._queue and any(waiting is data for waiting in self._queue):
            self._source.reset()
            self._sink.reset()

    def _arrive(self) -> None:
        self._on_the_way -= 1
        if not self._queue:
            return
        data = self._queue.popleft()
        if data is None:
            self._sink.ended()
        else:
            self.queued_bytes -= len(data)
            self._sink.received(data)
            self._source.drained(self.queued_bytes)

    def end(self) -> float:
        """End the stream.

        Gives how long the bytes in flight still take, unless they are lost.
        """
        if self._network.toss() or self._network.is_blocked(self._source.host, self._sink.host):
            self.drop()
            return 0.0
        return max(0.0, self._busy_until_s - self._network.now_s)

    def drop(self) -> None:
        self._queue.clear()
        self.queued_bytes = 0
        self._network.forget(self)


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    pipe: _Pipe
    protocol: Any

    def __init__(self, loop: VirtualLoop, process: Process | None, host: str) -> None:
        super().__init__()
        self._loop = loop
        self.process = process
        self.host = host
        self.peer_host = ""
        self._closing = False
        self._lost = False
        self._reading = True
        self._arrived: deque[bytes | None] = deque()
        self._write_paused = False

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Schedule a call of this end's protocol, as its process."""
        self._loop.call_soon(function, *args, context=self.process.context if self.process is not None else None)

    # ── what protocols use ──

    def write(self, data: Any) -> None:
        if not self._closing and not self._lost and len(data):
            self.pipe.send(bytes(data))
            if self.pipe.queued_bytes > WRITE_HIGH_BYTES and not self._write_paused:
                self._write_paused = True
                self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def close(self) -> None:
        if not self._closing and not self._lost:
            self._closing = True
            self.pipe.send(None)
            self.call(self._lose, None)

    def abort(self) -> None:
        self.reset()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._arrived:
            self.call(self._deliver)

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.pipe.queued_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": (self.peer_host, 1), "sockname": (self.host, 1)}.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    # ── what the network does ──

    def received(self, data: bytes) -> None:
        self._arrived.append(data)
        self._deliver()

    def ended(self) -> None:
        self._arrived.append(None)
        self._deliver()

    def _deliver(self) -> None:
        while self._arrived and self._reading and not self._lost and not self._closing:
            data = self._arrived.popleft()
            if data is None:
                self.protocol.eof_received()
                self._closing = True
                self.pipe.send(None)
                self._lose(None)
            elif isinstance(self.protocol, asyncio.BufferedProtocol):
                view = memoryview(data)
                while view:
                    buffer = memoryview(self.protocol.get_buffer(len(view)))
                    count = min(len(buffer), len(view))
                    buffer[:count] = view[:count]
                    self.protocol.buffer_updated(count)
                    view = view[count:]
            else:
                self.protocol.data_received(data)

    def drained(self, queued_bytes: int) -> None:
        if self._write_paused and queued_bytes < WRITE_HIGH_BYTES // 4:
            self._write_paused = False
            self.call(self.protocol.resume_writing)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self.protocol.connection_lost(error)

    def reset(self) -> None:
        """Break the connection: both ends are told, and bytes in flight are lost."""
        if not self._lost:
            self.pipe.drop()
            self.call(self._lose, ConnectionResetError(104, "connection reset by peer"))

    def died(self) -> None:
        """Reset the connection of a killed process, as the operating system does.

        Bytes that were sent before are lost, or arrive all the same.
        """
        self._lost = True
        left_s = self.pipe.end()
        peer = self.pipe._sink
        context = peer.process.context if peer.process is not None else None
        peer._loop.call_later(left_s + 0.001, peer.reset, context=context)
