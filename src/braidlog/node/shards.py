"""The supervisor of an agent's shards: starts and restarts their processes."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from typing import Any

import structlog

from braidlog.node.machine import SUPERVISOR, Bell, Machine
from braidlog.runtime.backoff import Backoff
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, InvalidSetting, Remedy
from braidlog.runtime.http import fetch_text
from braidlog.runtime.metrics import merge_figures
from braidlog.runtime.quantities import Address, Addresses
from braidlog.runtime.security_settings import parse_listeners
from braidlog.runtime.settings import AgentSettings
from braidlog.writing.shards.board import BoardShape
from braidlog.writing.shards.shard_groups import GroupLocks, bury

log = structlog.get_logger(__name__)

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
SILENCE_S_MAX = 10.0
"""A shard whose event loop has not run for this long holds up its group, so it is killed."""
RESTART = Backoff(first_s=0.1, max_s=5.0, share_min=0.5)
LOCK_RETRY_S = 0.002
PORT_TRIES_MAX = 50
FIGURES_TIMEOUT_S = 2.0
STOP = b"stop\n"
LINE_BYTES_MAX = 1 << 20
MEMORY_BYTES_MIN = 16 * 1024 * 1024


class ShardFailed(BraidError):
    """A shard ended before it could serve."""

    remedy = Remedy.FIX_INPUT


class _Shard:
    """The process of one shard, and its state."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: asyncio.subprocess.Process | None = None
        self.port = 0
        self.metrics = ""
        self.is_ready = False
        self.started_s = 0.0
        self.restarts = 0


class ShardSupervisor:
    def __init__(self, settings: AgentSettings, shard_count: int, clock: Clock, entropy: Entropy) -> None:
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._machine = Machine.create(BoardShape(shard_count), settings.upload_policy)
        self._links = self._machine.links(SUPERVISOR)
        self._shards = [_Shard(number) for number in range(shard_count)]
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    @property
    def addresses(self) -> list[Address]:
        return [Address(self._settings.listen.host, shard.port) for shard in self._shards]

    def trouble(self) -> str | None:
        """What is wrong, or None if every shard serves."""
        down = [str(shard.number) for shard in self._shards if not shard.is_ready]
        return f"shard {', '.join(down)} is not ready" if down else None

    async def start(self) -> None:
        if self._settings.listen.port == 0:
            # Neighbouring ports, as with a given port: an agent restarted at the first one gets the others back.
            first = free_ports(self._settings.listen.host, len(self._shards))
            for shard in self._shards:
                shard.port = first + shard.number
        try:
            await asyncio.gather(*(self._spawn(shard) for shard in self._shards))
        except BaseException:
            await self.stop()
            raise
        self._tasks = [asyncio.create_task(self._keep(shard)) for shard in self._shards]
        self._tasks.append(asyncio.create_task(self._watch()))

    async def stop(self) -> None:
        """Ask the shards to stop, on their standard input.

        They also stop when it ends, as we are gone then.
        """
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._end(shard) for shard in self._shards))
        self._machine.close()

    async def _end(self, shard: _Shard) -> None:
        process = shard.process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.write(STOP)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            log.warning("shard did not stop in time", shard=shard.number)
            _kill(process)
            await process.wait()

    # ── one shard ──

    async def _spawn(self, shard: _Shard) -> None:
        """Start the process of a shard, and return when it serves."""
        read_fd, write_fd = os.pipe()
        try:
            shard.process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "braidlog",
                "shard",
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(*self._machine.fds, write_fd),
                start_new_session=True,  # Ctrl-C is for the supervisor
            )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb")
        )
        shard.started_s = self._clock.monotonic_s()
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(self._orders(shard, write_fd)).encode() + b"\n")
            await process.stdin.drain()
            line = await self._first_line(process, reader)
        except ConnectionError:
            line = b""
        finally:
            transport.close()
        if not line:
            raise ShardFailed(f"shard {shard.number} did not start", help="Its reason is in the log above.")
        report: Mapping[str, Any] = json.loads(line)
        shard.port, shard.metrics, shard.is_ready = report["port"], report["metrics"], True

    async def _first_line(self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader) -> bytes:
        """Return what the shard reports, or nothing if it ends or takes too long.

        This waits for the end of the process as well: another child that was started in the same moment may have
        inherited the other end of the pipe."""
        line = asyncio.ensure_future(reader.readline())
        ended = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait({line, ended}, timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            return line.result() if line.done() else b""
        finally:
            line.cancel()
            ended.cancel()

    def _orders(self, shard: _Shard, report_fd: int) -> dict[str, Any]:
        shape = self._machine.shape
        return {
            "shard": shard.number,
            "memory_fd": self._machine.memory_fd,
            "bells": self._machine.bells,
            "shape": [shape.shard_count, shape.slot_count, shape.arena_bytes],
            "report_fd": report_fd,
            "settings": shard_settings(self._settings, shard.number, shape.shard_count, port=shard.port),
        }

    async def _keep(self, shard: _Shard) -> None:
        """Restart a shard whenever it ends, after clearing up behind it.

        The pauses grow while it fails to start.
        """
        failed_starts = 0
        while True:
            assert shard.process is not None
            code = await shard.process.wait()
            if shard.is_ready:  # it had started well
                failed_starts = 0
            shard.is_ready = False
            log.warning("shard ended", shard=shard.number, code=code)
            await self._bury(shard.number)
            await self._clock.sleep(RESTART.pause_s(failed_starts, self._entropy))
            failed_starts += 1
            shard.restarts += 1
            try:
                await self._spawn(shard)
            except Exception as error:  # noqa: BLE001 - whatever it was, an agent does not do without the shard for ever
                log.warning("shard did not start again", shard=shard.number, error=repr(error))
                _kill(shard.process)

    async def _bury(self, number: int) -> None:
        for link in (self._links.classic, self._links.journal):
            while not bury(link.board, GroupLocks(link), number):
                await self._clock.sleep(LOCK_RETRY_S)
            for shard in self._shards:
                link.wake(shard.number)

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(1.0)
            now_s = self._clock.monotonic_s()
            for shard in self._shards:
                seen_s = self._links.classic.board.seen_s(shard.number)
                if (
                    shard.is_ready
                    and shard.process is not None
                    and now_s - max(seen_s, shard.started_s) > SILENCE_S_MAX
                ):
                    log.error("shard does not answer and is killed", shard=shard.number, silent_s=SILENCE_S_MAX)
                    _kill(shard.process)

    # ── figures ──

    async def figures(self, own: bytes) -> bytes:
        """Return the metrics of every shard, and the supervisor's own.

        Each shard's metrics have its number as a label.
        """
        ready = [shard for shard in self._shards if shard.is_ready]
        texts = await asyncio.gather(*(self._figures_of(shard) for shard in ready))
        parts = {str(shard.number): text for shard, text in zip(ready, texts, strict=True) if text is not None}
        return merge_figures(own.decode(), parts, "shard")

    async def _figures_of(self, shard: _Shard) -> str | None:
        try:
            return await fetch_text(Address.parse(shard.metrics), "/metrics", timeout_s=FIGURES_TIMEOUT_S)
        except (OSError, ValueError):
            return None


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):  # it has died, and we do not know it yet
        process.kill()


def free_ports(host: str, count: int) -> int:
    """Find `count` neighbouring ports that nobody listens on, and return the first."""
    for _ in range(PORT_TRIES_MAX):
        with ExitStack() as stack:
            first = stack.enter_context(socket.create_server((host, 0))).getsockname()[1]
            try:
                for port in range(first + 1, first + count):
                    stack.enter_context(socket.create_server((host, port)))
            except (OSError, OverflowError):
                continue
        return int(first)
    raise InvalidSetting(
        f"found no {count} neighbouring free ports on {host}", help="Give one with --listen HOST:PORT."
    )


def shard_settings(settings: AgentSettings, shard: int, shard_count: int, *, port: int = 0) -> dict[str, Any]:
    """Return the settings of one shard.

    They are the agent's, with the shard's own port and its share of the memory.
    """

    def moved(address: Address) -> str:
        return str(Address(address.host, address.port + shard if address.port else 0))

    def all_moved(listeners: str) -> str:
        return ",".join(f"{name}://{moved(address)}" for name, address in parse_listeners(listeners).items())

    listen = Address(settings.listen.host, port) if port else None
    cache_listen = settings.cache_listen
    changes: dict[str, Any] = {
        "listen": str(listen) if listen is not None else moved(settings.listen),
        "advertised": moved(settings.advertised) if settings.advertised is not None else None,
        "listeners": all_moved(settings.listeners),
        "advertised_listeners": all_moved(settings.advertised_listeners),
        "metrics_listen": "127.0.0.1:0",
        "cache_listen": moved(cache_listen) if isinstance(cache_listen, Address) else cache_listen,
        "memory_budget_bytes": max(MEMORY_BYTES_MIN, settings.memory_budget_bytes // shard_count),
        "cache_bytes": settings.cache_bytes // shard_count,
        "shards": shard_count,
    }
    given = {name: str(value) if isinstance(value, Address | Addresses) else value for name, value in settings}
    return {**given, **changes}


@asynccontextmanager
async def run_shards(
    settings: AgentSettings, shard_count: int, clock: Clock, entropy: Entropy
) -> AsyncIterator[ShardSupervisor]:
    async with AsyncExitStack() as stack:
        supervisor = ShardSupervisor(settings, shard_count, clock, entropy)
        await supervisor.start()
        stack.push_async_callback(supervisor.stop)
        yield supervisor


# ── the child's side ──


class ShardOrders:
    """The supervisor's orders to a shard, on its standard input.

    It stays open while the supervisor lives.
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        shard_count, slot_count, arena_bytes = told["shape"]
        shape = BoardShape(shard_count, slot_count, arena_bytes)
        bells = tuple(Bell(*fds) for fds in told["bells"])
        self.shard: int = told["shard"]
        self.links = Machine(told["memory_fd"], bells, shape).links(self.shard)
        self.settings = AgentSettings.model_validate(told["settings"])
        self._report_fd: int = told["report_fd"]

    def report(self, port: int, metrics: Address | None) -> None:
        line = json.dumps({"port": port, "metrics": str(metrics)}) + "\n"
        os.write(self._report_fd, line.encode())
        os.close(self._report_fd)

    def stop_with_supervisor(self) -> None:
        """Stop, as if by a signal, when the supervisor says so or is gone.

        If it is gone, stop at once, so that its successor finds our port free. Clients then send again what was not
        acknowledged.
        """
        loop = asyncio.get_running_loop()

        def told() -> None:
            said = os.read(0, 4096)
            if not said:
                os._exit(1)
            if STOP in said:
                os.kill(os.getpid(), signal.SIGTERM)

        loop.add_reader(0, told)
