"""Keeps the agent's view of the cluster moving along the control plane's change feed."""

import asyncio

import structlog

from braidlog.agent.view import ClusterView
from braidlog.control.interface import ControlPlane, FeedRequest, SnapshotRequest
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError

log = structlog.get_logger(__name__)

FEED_WAIT_MS = 10_000
CALL_MARGIN_S = 5.0
BACKOFF_S_FIRST, BACKOFF_S_MAX = 0.05, 2.0


class FeedFollower:
    """A gap in the feed, a control plane with a new fencing epoch, or an unforeseen error reloads the whole view."""

    def __init__(self, control: ControlPlane, view: ClusterView, clock: Clock, entropy: Entropy) -> None:
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
        backoff_s = BACKOFF_S_FIRST
        while True:
            try:
                page = await self._control.read_feed(
                    FeedRequest(self._view.position, FEED_WAIT_MS), timeout_s=FEED_WAIT_MS / 1000 + CALL_MARGIN_S
                )
                if page.reload:
                    await self.load()
                else:
                    self._view.apply(page.events, page.position)
                    self.last_heard_s = self._clock.monotonic_s()
                    # Not for a reload: where each change fails, each is followed by a reload that does not.
                    backoff_s = BACKOFF_S_FIRST
                continue
            except asyncio.CancelledError:
                raise
            except BraidError as error:
                log.warning("change feed interrupted", error=str(error), retry_within_s=backoff_s)
            except Exception as error:
                # Whatever it is, a view that stands still is worse; and this one may have taken in half of a change.
                log.error("change feed failed in an unforeseen way", exc_info=error, retry_within_s=backoff_s)
                self._view.doubt()
            await self._clock.sleep(self._entropy.uniform(0.0, backoff_s))
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
