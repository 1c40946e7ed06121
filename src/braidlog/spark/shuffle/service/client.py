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

from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import ControlUnavailable, DeadlineExceeded
from braidlog.runtime.limits import RPC_MESSAGE_BYTES_MAX
from braidlog.runtime.rpc.client import RpcClient
from braidlog.runtime.tasks import TaskGroup
from braidlog.spark.shuffle.buffers import Chunk
from braidlog.spark.shuffle.notification import Notification
from braidlog.spark.shuffle.service.server import (
    IDLE_S_MAX,
    SEEN_METHOD,
    SHARE_METHOD,
    STATISTICS_METHOD,
    STAY_METHOD,
    TOKEN_BYTES,
    NodeSettings,
    ServiceSettings,
)
from braidlog.spark.shuffle.service.shared_buffers import (
    SharingStatistics,
    TooMuchHeld,
    decode_notifications,
    encode_runs,
)

START_S_MAX = 60.0
"""How long a task tries to reach the service while it works. It waits for that only at its end: see `JOIN_S_MAX`."""
JOIN_S_MAX = 5.0
"""How long a task that has all its rows waits for a service that starts."""
SHARE_S_MAX = 120.0
SHARED_BYTES_MAX = RPC_MESSAGE_BYTES_MAX // 2
UNAVAILABLE_S = 30.0
"""How long tasks do not try again after the service could not be reached."""
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

    def member(self) -> "ServiceMember":
        """Register one attempt at a task."""
        return ServiceMember(self, self._entropy.token(TOKEN_BYTES))

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

    async def statistics(self) -> SharingStatistics | None:
        """Ask the service for its statistics.

        None if none answers. It is not started for this.
        """
        client = RpcClient(self._settings.socket_path, self._clock, self._entropy.fork("statistics"))
        try:
            answer = await client.call(STATISTICS_METHOD, b"", START_S_MAX)
        except (ControlUnavailable, DeadlineExceeded):
            return None
        finally:
            await client.close()
        return msgspec.json.decode(answer, type=SharingStatistics)

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

    It joins the service while it works, shares its rows once, and leaves.
    """

    def __init__(self, service: NodeService, token: bytes) -> None:
        self._service = service
        self._token = token
        self._joined = asyncio.Event()
        self._presence = service.tasks.spawn(self._be_present())

    async def _be_present(self) -> None:
        client = await self._service.client()
        if client is None:
            return
        staying = self._service.tasks.spawn(client.call(STAY_METHOD, self._token))
        try:
            await client.call(SEEN_METHOD, b"", START_S_MAX)
            self._joined.set()
            await staying
        except (ControlUnavailable, DeadlineExceeded):
            if not self._joined.is_set():
                self._service.give_up()
        finally:
            staying.cancel()
            await asyncio.wait({staying})

    async def share(self, runs: Mapping[str, Sequence[Chunk]]) -> list[Notification] | None:
        waiting = asyncio.ensure_future(self._joined.wait())
        try:
            await asyncio.wait({waiting, self._presence}, timeout=JOIN_S_MAX, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        size_bytes = sum(chunk.size_bytes for chunks in runs.values() for chunk in chunks)
        if not self._joined.is_set() or self._presence.done() or size_bytes > SHARED_BYTES_MAX:
            return None
        client = await self._service.client()
        if client is None:
            return None
        try:
            return decode_notifications(await client.call(SHARE_METHOD, self._token + encode_runs(runs), SHARE_S_MAX))
        except (ControlUnavailable, DeadlineExceeded, TooMuchHeld):
            return None

    async def leave(self) -> None:
        self._presence.cancel()
        await asyncio.wait({self._presence})


def _own_folder() -> Path:
    chosen = os.environ.get(FOLDER_VARIABLE)
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"braidlog-shuffle-{os.getuid()}"
