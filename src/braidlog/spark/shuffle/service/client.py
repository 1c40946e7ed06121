"""A task's side of the node's shuffle service.

It finds the service, starts it if needed, and does without it if it must. A task keeps its rows until the service has
answered that they are stored. If no answer comes, the task writes the rows itself. Nothing refers to what the service
may have written of them.
"""

import asyncio
import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from braidlog.cache.ranges import Range, encode_range
from braidlog.objects.store import Bytes
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import ControlUnavailable, DeadlineExceeded
from braidlog.runtime.limits import RPC_MESSAGE_BYTES_MAX
from braidlog.runtime.rpc.client import RpcClient
from braidlog.runtime.tasks import TaskGroup
from braidlog.spark.shuffle.buffers import Chunk
from braidlog.spark.shuffle.notification import Notification
from braidlog.spark.shuffle.service.server import (
    KEEP_METHOD,
    LAST,
    NOT_LAST,
    READ_METHOD,
    REPORT_METHOD,
    SEEN_METHOD,
    SHARE_METHOD,
    STATISTICS_METHOD,
    STAY_METHOD,
    TOKEN_BYTES,
    KeptBatch,
    NodeFacts,
    NodeStatistics,
)
from braidlog.spark.shuffle.service.settings import IDLE_S_MAX, NodeSettings, ServiceSettings
from braidlog.spark.shuffle.service.shared_buffers import TooMuchHeld, decode_notifications, encode_runs
from braidlog.spark.shuffle.service.usage import ShuffleUsage, encode_usage

START_S_MAX = 60.0
"""How long a task tries to reach the service while it works. It waits for that only at its end: see `JOIN_S_MAX`."""
JOIN_S_MAX = 15.0
"""How long a task waits for a service that starts. Only the first tasks of a node do."""
SHARE_S_MAX = 120.0
KEEP_S_MAX = 30.0
READ_S_MAX = 60.0
"""How long a task waits for the node's cache before it asks the store itself."""
REPORT_S_MAX = 10.0
STATISTICS_S_MAX = 10.0
SHARED_BYTES_MAX = RPC_MESSAGE_BYTES_MAX // 2
UNAVAILABLE_S = 120.0
"""How long tasks do not try again after the service could not be reached."""
_decode_facts = msgspec.json.Decoder(NodeFacts).decode
FOLDER_VARIABLE = "BRAIDLOG_SHUFFLE_FOLDER"
"""Names the folder for sockets and locks. By default it is in the folder for temporary files."""


class NodeService:
    """The client of the node's service in one process.

    There is one for each shuffle's settings.
    """

    def __init__(
        self,
        node: NodeSettings,
        *,
        clock: Clock,
        entropy: Entropy,
        idle_s_max: float = IDLE_S_MAX,
        folder: Path | None = None,
    ) -> None:
        name = blake2b(msgspec.json.encode(node), digest_size=12).hexdigest()
        self._folder = folder if folder is not None else _own_folder()
        path = str(self._folder / f"{name}.socket")
        self._settings = ServiceSettings(node, path, idle_s_max=idle_s_max)
        self._clock = clock
        self._entropy = entropy
        self._client: RpcClient | None = None
        self._without_until_s = 0.0
        self._child: subprocess.Popen[bytes] | None = None
        self.tasks = TaskGroup("shuffle service", errors_are_awaited=True)

    def member(self, *, shares: bool = True) -> "ServiceMember":
        """Register one attempt at a task. `shares`: others may wait for its rows."""
        return ServiceMember(self, self._entropy.token(TOKEN_BYTES) if shares else b"")

    async def client(self) -> RpcClient | None:
        """Return a client that is connected or connecting.

        It is None while the service is unavailable.
        """
        if self._clock.monotonic_s() < self._without_until_s:
            return None
        try:
            self._start_if_none()
        except OSError:
            self.give_up()
            return None
        if self._client is None:
            self._client = RpcClient(
                self._settings.socket_path, self._clock, self._entropy.fork("rpc"), connect_timeout_s=START_S_MAX
            )
        return self._client

    async def statistics(self) -> NodeStatistics | None:
        """Ask the service for its statistics.

        None if none answers. It is not started for this.
        """
        client = RpcClient(self._settings.socket_path, self._clock, self._entropy.fork("statistics"))
        try:
            answer = await client.call(STATISTICS_METHOD, b"", STATISTICS_S_MAX)
        except (ControlUnavailable, DeadlineExceeded):
            return None
        finally:
            await client.close()
        return msgspec.json.decode(answer, type=NodeStatistics)

    def give_up(self) -> None:
        self._without_until_s = self._clock.monotonic_s() + UNAVAILABLE_S

    def _start_if_none(self) -> None:
        """Start the service if no process holds its lock. The service inherits the lock."""
        if self._child is not None:
            self._child.poll()  # so that it does not remain a zombie
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.stat(self._folder)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(f"other users can access {self._folder}")
        lock_fd = os.open(f"{self._settings.socket_path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # the service is running
            self._child = subprocess.Popen(
                [sys.executable, "-c", "from braidlog.spark.shuffle.service.server import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(lock_fd,),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            assert self._child.stdin is not None
            with self._child.stdin as pipe, suppress(BrokenPipeError):
                pipe.write(msgspec.json.encode(self._settings))
        finally:
            os.close(lock_fd)

    async def close(self) -> None:
        await self.tasks.cancel_all()
        if self._client is not None:
            await self._client.close()


class ServiceMember:
    """One attempt at a task, as a member of the service.

    It joins the service while it works. Whatever the service cannot do, the task does itself.
    """

    def __init__(self, service: NodeService, token: bytes) -> None:
        """Without a token, it only reads and reports."""
        self._service = service
        self._token = token
        self._joined = asyncio.Event()
        self._facts: NodeFacts | None = None
        self._presence = service.tasks.spawn(self._be_present())

    @property
    def facts(self) -> NodeFacts | None:
        """What is known of the node. None while its service cannot be reached."""
        return self._facts

    @property
    def name(self) -> str:
        """The name of the node; empty while it is not known."""
        return self._facts.name if self._facts is not None else ""

    async def _be_present(self) -> None:
        client = await self._service.client()
        if client is None:
            return
        staying = self._service.tasks.spawn(self._stay(client))
        try:
            self._facts = _decode_facts(await client.call(SEEN_METHOD, b"", START_S_MAX))
            self._joined.set()
            await staying
        except (ControlUnavailable, DeadlineExceeded):
            if not self._joined.is_set():
                self._service.give_up()
        finally:
            self._facts = None
            staying.cancel()
            await asyncio.wait({staying})

    async def _stay(self, client: RpcClient) -> None:
        if self._token:
            await client.call(STAY_METHOD, self._token)
        else:
            await asyncio.get_running_loop().create_future()

    async def wait_joined(self) -> bool:
        """Wait for the service, but not for long, and return whether it is there."""
        waiting = asyncio.ensure_future(self._joined.wait())
        try:
            await asyncio.wait({waiting, self._presence}, timeout=JOIN_S_MAX, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        return self._joined.is_set() and not self._presence.done()

    async def share(self, runs: Mapping[str, Sequence[Chunk]], *, is_last: bool = True) -> list[Notification] | None:
        is_there = await self.wait_joined()
        size_bytes = sum(chunk.size_bytes for chunks in runs.values() for chunk in chunks)
        if not is_there or not self._token or size_bytes > SHARED_BYTES_MAX:
            return None
        body = self._token + (LAST if is_last else NOT_LAST) + encode_runs(runs)
        try:
            answer = await self._call(SHARE_METHOD, body, SHARE_S_MAX)
        except TooMuchHeld:
            return None
        return decode_notifications(answer) if answer is not None else None

    async def keep(self, key: str, data: Bytes) -> None:
        """Give the node's cache a batch that was just written, if it is there."""
        if self._facts is not None and len(data) <= SHARED_BYTES_MAX:
            await self._call(KEEP_METHOD, msgspec.msgpack.encode(KeptBatch(key, bytes(data))), KEEP_S_MAX)

    async def read(self, asked: Range) -> bytes | None:
        """Read through the node's cache. None if it does not answer."""
        return await self._call(READ_METHOD, encode_range(asked), READ_S_MAX)

    async def report(self, usage: ShuffleUsage) -> None:
        """Tell the node what this task has used itself."""
        if usage != ShuffleUsage():
            await self._call(REPORT_METHOD, encode_usage(usage), REPORT_S_MAX)

    async def _call(self, method: str, body: bytes, timeout_s: float) -> bytes | None:
        client = await self._service.client()
        if client is None:
            return None
        try:
            return await client.call(method, body, timeout_s)
        except (ControlUnavailable, DeadlineExceeded):
            return None

    async def leave(self) -> None:
        self._presence.cancel()
        await asyncio.wait({self._presence})


def _own_folder() -> Path:
    chosen = os.environ.get(FOLDER_VARIABLE)
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"braidlog-shuffle-{os.getuid()}"
