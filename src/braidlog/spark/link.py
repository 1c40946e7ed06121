"""A Python process of Spark and what it talks to: the control plane and the store.

Spark calls our code from ordinary threads, one call at a time; the stores and the control plane speak asyncio. So each
process has one event loop in a thread of its own, and connections that its tasks share.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from braidlog.control.interface import ControlPlane, Message, Snapshot, SnapshotRequest
from braidlog.control.remote import connect_control
from braidlog.objects.open import open_store
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock, SystemClock
from braidlog.runtime.entropy import Entropy, SystemEntropy
from braidlog.runtime.errors import ControlUnavailable, DeadlineExceeded, Fenced
from braidlog.spark.errors import JobError
from braidlog.spark.options import Place

T = TypeVar("T")

PATIENCE_S = 60.0
"""How long a control plane may be away before a job gives up on it: long enough for one to be started again."""
CALL_TIMEOUT_S = 20.0
_BACKOFF_S_FIRST = 0.1
_BACKOFF_S_MAX = 2.0
_LINKS_MAX = 8


class Link:
    """Use `link_to`. All calls are safe from any thread."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.clock: Clock = SystemClock()
        self.entropy: Entropy = SystemEntropy()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="braidlog", daemon=True).start()
        self._control = self.run(self._connect())
        self._store: Store | None = None

    async def _connect(self) -> ControlPlane:
        return connect_control(self.place.control, self.clock, self.entropy.fork("control"))

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begin, and let the caller do something else meanwhile."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.start(work).result()

    async def ask(self, call: str, request: Message, *, timeout_s: float | None = None) -> Any:
        """A call that may be repeated without harm, until the control plane has answered or patience is over."""
        send = getattr(self._control, call)
        timeout_s = CALL_TIMEOUT_S if timeout_s is None else timeout_s
        deadline_s = self.clock.monotonic_s() + max(PATIENCE_S, timeout_s)
        backoff_s = _BACKOFF_S_FIRST
        while True:
            try:
                return await send(request, timeout_s=timeout_s)
            except (ControlUnavailable, DeadlineExceeded, Fenced) as error:
                pause_s = self.entropy.uniform(backoff_s / 2, backoff_s)
                if self.clock.monotonic_s() + pause_s >= deadline_s:
                    raise JobError(
                        f"the control plane at {self.place.control} does not answer: {error}",
                        help='Is it running? The option "braidlog.control" says where it is.',
                    ) from error
                await self.clock.sleep(pause_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_S_MAX)

    async def snapshot(self) -> Snapshot:
        found: Snapshot = await self.ask("snapshot", SnapshotRequest())
        return found

    async def store(self) -> Store:
        if self._store is None:
            url = self.place.store_url or (await self.snapshot()).store_url
            if not url:
                raise JobError(
                    "nobody says where the objects are",
                    help='Give the URL of the store: option("store", "s3://bucket/prefix").',
                )
            if url.startswith("memory:"):
                raise JobError(
                    "a store in memory can be read by its own process alone",
                    help="Run Braidlog with --store file:///folder or s3://bucket/prefix.",
                )
            self._store = open_store(url, clock=self.clock, entropy=self.entropy.fork("store"))
        return self._store

    async def close(self) -> None:
        await self._control.close()
        if self._store is not None:
            await self._store.close()


_links: dict[tuple[int, Place], Link] = {}
_links_lock = threading.Lock()


def link_to(place: Place) -> Link:
    """This process's link to a Braidlog. A forked process does not use its parent's: the loop's thread is not there."""
    with _links_lock:
        key = (os.getpid(), place)
        link = _links.get(key)
        if link is None:
            while len(_links) >= _LINKS_MAX:
                oldest = next(iter(_links))
                dropped = _links.pop(oldest)
                if oldest[0] == os.getpid():
                    dropped.start(dropped.close())
            link = _links[key] = Link(place)
        return link
