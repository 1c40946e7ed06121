"""Follows the control plane's change feed to keep the agent's view current."""

import asyncio

import structlog

from braidlog.agent.cluster.view import ClusterView
from braidlog.control.interface import ControlPlane, FeedRequest, SnapshotRequest
from braidlog.runtime.backoff import Backoff
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError

log = structlog.get_logger(__name__)

FEED_WAIT_MS = 10_000
CALL_MARGIN_S = 5.0
FEED_BACKOFF = Backoff(first_s=0.05, max_s=2.0)


class FeedFollower:
    """Follows the feed.

    A gap in it, a new fencing epoch or an unexpected error reloads the whole view.
    """

    def __init__(
        self, control: ControlPlane, view: ClusterView, clock: Clock, entropy: Entropy, incarnation: str = ""
    ) -> None:
        self._incarnation = incarnation
        self._control = control
        self._view = view
        self._clock = clock
        self._entropy = entropy
        self._reloads = 0
        self.last_heard_s = clock.monotonic_s()

    @property
    def reloads(self) -> int:
        return self._reloads

    async def load(self) -> None:
        self._view.load(await self._control.snapshot(SnapshotRequest(), timeout_s=30.0))
        self._reloads += 1
        self.last_heard_s = self._clock.monotonic_s()

    async def run(self) -> None:
        """Follow for ever. The view must have been loaded."""
        failures = 0
        while True:
            try:
                page = await self._control.read_feed(
                    FeedRequest(self._view.position, FEED_WAIT_MS, self._incarnation),
                    timeout_s=FEED_WAIT_MS / 1000 + CALL_MARGIN_S,
                )
                if page.reload:
                    await self.load()
                else:
                    self._view.apply(page.events, page.position)
                    self.last_heard_s = self._clock.monotonic_s()
                    # Not after a reload: if every change fails, every one is followed by a reload that succeeds.
                    failures = 0
                continue
            except asyncio.CancelledError:
                raise
            except BraidError as error:
                log.warning("change feed interrupted", error=str(error), retry_within_s=FEED_BACKOFF.bound_s(failures))
            except Exception as error:
                # Whatever it is, a view that stands still is worse. This one may contain half of a change.
                log.error(
                    "change feed failed with an unexpected error",
                    exc_info=error,
                    retry_within_s=FEED_BACKOFF.bound_s(failures),
                )
                self._view.doubt()
            await self._clock.sleep(FEED_BACKOFF.pause_s(failures, self._entropy))
            failures += 1
