"""The connections of a Spark process to the control plane and the store."""

from typing import Any

from braidlog.control.interface import ControlPlane, Message, Snapshot, SnapshotRequest
from braidlog.control.remote import connect_control
from braidlog.objects.open import open_store
from braidlog.objects.store import Store
from braidlog.runtime.backoff import Backoff
from braidlog.runtime.clock import Clock, SystemClock
from braidlog.runtime.entropy import Entropy, SystemEntropy
from braidlog.runtime.errors import ControlUnavailable, DeadlineExceeded, Fenced
from braidlog.spark.errors import JobError
from braidlog.spark.event_loop import PerProcess, event_loop_thread
from braidlog.spark.options import ClusterAddress

PATIENCE_S = 60.0
"""How long a job waits for a control plane that does not answer: long enough for a restart."""
CALL_TIMEOUT_S = 20.0
_BACKOFF = Backoff(first_s=0.1, max_s=2.0, share_min=0.5)


class Link:
    """Talks to one Braidlog.

    Use `link_to`. Its coroutines run on `loop`, which is safe from any thread.
    """

    def __init__(self, address: ClusterAddress) -> None:
        self.address = address
        self.clock: Clock = SystemClock()
        self.entropy: Entropy = SystemEntropy()
        self.loop = event_loop_thread()
        self._control = self.loop.run(self._connect())
        self._store: Store | None = None

    async def _connect(self) -> ControlPlane:
        return connect_control(self.address.control, self.clock, self.entropy.fork("control"))

    async def ask(self, call: str, request: Message, *, timeout_s: float | None = None) -> Any:
        """Repeat an idempotent call until the control plane answers.

        It gives up after `PATIENCE_S`.
        """
        send = getattr(self._control, call)
        timeout_s = CALL_TIMEOUT_S if timeout_s is None else timeout_s
        deadline_s = self.clock.monotonic_s() + max(PATIENCE_S, timeout_s)
        failures = 0
        while True:
            try:
                return await send(request, timeout_s=timeout_s)
            except (ControlUnavailable, DeadlineExceeded, Fenced) as error:
                pause_s = _BACKOFF.pause_s(failures, self.entropy)
                if self.clock.monotonic_s() + pause_s >= deadline_s:
                    raise JobError(
                        f"the control plane at {self.address.control} does not answer: {error}",
                        help='Is it running? The option "braidlog.control" says where it is.',
                    ) from error
                await self.clock.sleep(pause_s)
                failures += 1

    async def snapshot(self) -> Snapshot:
        found: Snapshot = await self.ask("snapshot", SnapshotRequest())
        return found

    async def store(self) -> Store:
        if self._store is None:
            url = self.address.store_url or (await self.snapshot()).store_url
            if not url:
                raise JobError(
                    "the URL of the store is not known",
                    help='Give the URL of the store: option("braidlog.store", "s3://bucket/prefix").',
                )
            if url.startswith("memory:"):
                raise JobError(
                    "a store in memory can only be read by its own process",
                    help="Run Braidlog with --store file:///folder or s3://bucket/prefix.",
                )
            self._store = open_store(url, clock=self.clock, entropy=self.entropy.fork("store"))
        return self._store

    async def close(self) -> None:
        await self._control.close()
        if self._store is not None:
            await self._store.close()


_links: PerProcess[ClusterAddress, Link] = PerProcess(Link)


def link_to(address: ClusterAddress) -> Link:
    """Return this process's link to a Braidlog.

    Tasks that run one after another share it.
    """
    return _links.get(address)
