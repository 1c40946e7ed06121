"""An agent of several shards: a supervisor that starts a process for each, and starts it again when it dies."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from typing import Any

import structlog

from braidlog.agent.machine import Machine, ProcessSeat
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, InvalidSetting, Remedy
from braidlog.runtime.http import fetch_text
from braidlog.runtime.metrics import merge_figures
from braidlog.runtime.quantities import Address
from braidlog.runtime.settings import AgentSettings
from braidlog.writing.board import BoardShape

log = structlog.get_logger(__name__)

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
SILENCE_S_MAX = 10.0
"""A shard whose event loop has not run for so long holds up its group, and is killed."""
RESTART_S_FIRST, RESTART_S_MAX = 0.1, 5.0
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
    """One process, and what is known of it."""

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
        self._board = self._machine.map_board()
        self._shards = [_Shard(number) for number in range(shard_count)]
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    @property
    def addresses(self) -> list[Address]:
        return [Address(self._settings.listen.host, shard.port) for shard in self._shards]

    def trouble(self) -> str | None:
        """None when every shard serves."""
        down = [str(shard.number) for shard in self._shards if not shard.is_ready]
        return f"shard {', '.join(down)} is not ready" if down else None

    async def start(self) -> None:
        if self._settings.listen.port == 0:
            # Neighbours, as with a given port: whoever starts the agent again at the first one gets the others back.
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
        """Shards are asked to stop on their standard input. Where that just ends, this process is gone, and they go."""
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
        """Start its process, and return when it serves."""
        read_fd, write_fd = os.pipe()
        try:
            shard.process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "braidlog.cli.main",
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
        """What the shard reports, or nothing where it ends or takes too long. Its end is waited for as well: another
        child that was started in the same moment may have inherited the other end of the pipe."""
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
            "bell_fds": self._machine.bell_fds,
            "shape": [shape.shard_count, shape.slot_count, shape.arena_bytes],
            "report_fd": report_fd,
            "settings": shard_settings(self._settings, shard.number, shape.shard_count, port=shard.port),
        }

    async def _keep(self, shard: _Shard) -> None:
        """Wait for its end, clear up after it, and start it again, ever more slowly where that does not help."""
        pause_s = RESTART_S_FIRST
        while True:
            assert shard.process is not None
            code = await shard.process.wait()
            if shard.is_ready:  # it did not die of its start
                pause_s = RESTART_S_FIRST
            shard.is_ready = False
            log.warning("shard ended", shard=shard.number, code=code)
            await self._bury(shard.number)
            await self._clock.sleep(self._entropy.uniform(0.5, 1.0) * pause_s)
            pause_s = min(2 * pause_s, RESTART_S_MAX)
            shard.restarts += 1
            try:
                await self._spawn(shard)
            except Exception as error:  # noqa: BLE001 - whatever it was, an agent does not do without the shard for ever
                log.warning("shard did not start again", shard=shard.number, error=repr(error))
                _kill(shard.process)

    async def _bury(self, number: int) -> None:
        while True:
            group = self._board.group_of(number)
            if self._machine.try_lock(group):
                if self._board.group_of(number) == group:
                    break
                self._machine.unlock(group)
            await self._clock.sleep(LOCK_RETRY_S)
        try:
            self._board.bury(number)
        finally:
            self._machine.unlock(group)
        self._machine.ring(range(len(self._shards)))

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(1.0)
            now_s = self._clock.monotonic_s()
            for shard in self._shards:
                seen_s = self._board.seen_s(shard.number)
                if (
                    shard.is_ready
                    and shard.process is not None
                    and now_s - max(seen_s, shard.started_s) > SILENCE_S_MAX
                ):
                    log.error("shard does not answer and is killed", shard=shard.number, silent_s=SILENCE_S_MAX)
                    _kill(shard.process)

    # ── figures ──

    async def figures(self, own: bytes) -> bytes:
        """Every shard's figures with its number as a label, and the supervisor's own."""
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
    with suppress(ProcessLookupError):  # it has died, and we have not heard of it yet
        process.kill()


def free_ports(host: str, count: int) -> int:
    """The first of so many neighbouring ports that nobody listens on."""
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
    """One shard's part of an agent's settings: the next port, and its share of the memory."""

    def moved(address: Address) -> str:
        return str(Address(address.host, address.port + shard if address.port else 0))

    listen = Address(settings.listen.host, port) if port else None
    cache_listen = settings.cache_listen
    changes: dict[str, Any] = {
        "listen": str(listen) if listen is not None else moved(settings.listen),
        "advertised": moved(settings.advertised) if settings.advertised is not None else None,
        "metrics_listen": "127.0.0.1:0",
        "cache_listen": moved(cache_listen) if isinstance(cache_listen, Address) else cache_listen,
        "memory_budget_bytes": max(MEMORY_BYTES_MIN, settings.memory_budget_bytes // shard_count),
        "cache_bytes": settings.cache_bytes // shard_count,
        "shards": shard_count,
    }
    given = {name: str(value) if isinstance(value, Address) else value for name, value in settings}
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
    """What a shard is told by its supervisor on its standard input, which stays open while the supervisor lives."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        shard_count, slot_count, arena_bytes = told["shape"]
        shape = BoardShape(shard_count, slot_count, arena_bytes)
        bell_fds: Sequence[int] = told["bell_fds"]
        self.shard: int = told["shard"]
        self.seat = ProcessSeat(Machine(told["memory_fd"], tuple(bell_fds), shape), self.shard)
        self.settings = AgentSettings.model_validate(told["settings"])
        self._report_fd: int = told["report_fd"]

    def report(self, port: int, metrics: Address | None) -> None:
        line = json.dumps({"port": port, "metrics": str(metrics)}) + "\n"
        os.write(self._report_fd, line.encode())
        os.close(self._report_fd)

    def stop_with_supervisor(self) -> None:
        """Stop as if by a signal when the supervisor says so; and at once when it is gone, so that the next one finds
        our port free. What was not acknowledged is then sent again."""
        loop = asyncio.get_running_loop()

        def told() -> None:
            said = os.read(0, 4096)
            if not said:
                os._exit(1)
            if STOP in said:
                os.kill(os.getpid(), signal.SIGTERM)

        loop.add_reader(0, told)
