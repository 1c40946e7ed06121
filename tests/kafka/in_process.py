"""A control plane and an agent in a thread of this process, over real sockets, on a store that the test may wrap."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import uvloop
from tests.cluster import free_port

from braidlog.agent.agent import Agent
from braidlog.control.interface import ControlPlane
from braidlog.control.metadata.store import open_metadata
from braidlog.control.remote import connect_control
from braidlog.control.server import serve_control
from braidlog.control.service import ControlService
from braidlog.node.assembly import control_settings
from braidlog.objects.open import open_store
from braidlog.objects.retries import RetryPolicy
from braidlog.objects.store import Store
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy
from braidlog.runtime.metrics import Metrics
from braidlog.runtime.rpc.server import RpcServer
from braidlog.runtime.settings import Settings, load_settings

T = TypeVar("T")
CALL_S_MAX = 90.0


class InProcessBraidlog:
    """Clients run in the test's own thread."""

    def __init__(
        self,
        folder: Path,
        *,
        wrap: Sequence[Callable[[Store], Store]] = (),
        retry: RetryPolicy | None = None,
        **settings: object,
    ) -> None:
        self.metadata_path = folder / "metadata.db"
        self.store_url = f"file://{folder / 'store'}"
        self._wrap = wrap
        self._retry = retry
        self._settings: Settings = load_settings(
            {
                "store_url": self.store_url,
                "metadata_url": f"sqlite://{self.metadata_path}",
                "listen": f"127.0.0.1:{free_port()}",
                "upload_interval_ms": 10,
                **settings,
            }
        )
        self._clock, self._entropy = SystemClock(), SystemEntropy()
        # The loop that agents run on. asyncio's own drops a connection that it has accepted without closing it where
        # the server is closed before that connection's first step.
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="braidlog", daemon=True)
        self._service: ControlService | None = None
        self._server: RpcServer | None = None
        self._store: Store | None = None
        self._remote: ControlPlane | None = None
        self._agent: Agent | None = None

    @property
    def bootstrap(self) -> str:
        return str(self._settings.agent.listen)

    def __enter__(self) -> "InProcessBraidlog":
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def agent(self) -> Agent:
        assert self._agent is not None, "it has not started"
        return self._agent

    def restart_agent(self) -> None:
        """Answer what was accepted, leave, and come back at the same port with nothing remembered."""
        self._run(self._restart_agent())

    def call(self, work: Callable[[ControlPlane], Coroutine[Any, Any, T]]) -> T:
        """Ask the control plane, past all agents and their rules."""
        assert self._remote is not None
        return self._run(work(self._remote))

    def wait_until(self, condition: Callable[[Agent], bool]) -> None:
        """Wait until the agent's view is as wanted."""
        self._run(self._wait_until(condition))

    async def _wait_until(self, condition: Callable[[Agent], bool]) -> None:
        while not condition(self.agent):
            await self.agent.view.wait_catalog_change()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S_MAX)

    async def _start(self) -> None:
        self._store = open_store(
            self.store_url, clock=self._clock, entropy=self._entropy, retry=self._retry, wrap=self._wrap
        )
        control = self._settings.control
        metadata = await open_metadata(control.metadata_url)
        self._service = ControlService(metadata, self._store, self._clock, self._entropy, control_settings(control))
        await self._service.start()
        self._server = await serve_control(self._service, "127.0.0.1:0")
        self._remote = connect_control(self._server.address, self._clock, self._entropy)
        await self._start_agent()

    async def _start_agent(self) -> None:
        assert self._remote is not None
        assert self._store is not None
        self.metrics = Metrics(process=False)
        self._agent = Agent(self._remote, self._store, self._clock, self._entropy, self._settings.agent, self.metrics)
        await self._agent.start()

    async def _restart_agent(self) -> None:
        assert self._agent is not None
        await self._agent.stop()
        await self._start_agent()

    async def _stop(self) -> None:
        if self._agent is not None:
            await self._agent.stop()
        if self._remote is not None:
            await self._remote.close()
        if self._server is not None:
            await self._server.close()
        if self._service is not None:
            await self._service.close()
        if self._store is not None:
            await self._store.close()
