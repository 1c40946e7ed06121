"""Tells whether the control plane is away, from the outcomes of calls to it.

Pure except for the clock.
"""

from collections.abc import Callable

from braidlog.runtime.clock import Clock


class Reachability:
    """The control plane is away when calls fail and none was answered for `after_s`.

    Any answer ends the outage.

    Agents send heartbeats every few seconds, so no other probe is needed. Silence alone does not begin an outage:
    otherwise a process that was suspended for a while would take everybody else for gone.
    """

    def __init__(self, clock: Clock, after_s: float) -> None:
        self._clock = clock
        self._after_s = after_s
        self._heard_s = clock.monotonic_s()
        self._failures = 0
        self._away_since_s: float | None = None
        self.outages = 0
        """The number of outages, including a present one."""
        self.away_s_total = 0.0
        """The total length of all outages that are over."""
        self.on_away: list[Callable[[], None]] = []
        """Functions to call when an outage begins."""
        self.on_back: list[Callable[[], None]] = []
        """Functions to call when an outage is over."""

    @property
    def is_away(self) -> bool:
        self._look()
        return self._away_since_s is not None

    @property
    def is_doubtful(self) -> bool:
        """Whether the last call failed: the control plane may be away, or merely slow."""
        return self._failures > 0

    @property
    def silent_s(self) -> float:
        """The time since the last answer."""
        return self._clock.monotonic_s() - self._heard_s

    @property
    def away_s(self) -> float:
        """The length of this outage since the last answer; 0 if there is none."""
        return self.silent_s if self.is_away else 0.0

    def answered(self) -> None:
        now_s = self._clock.monotonic_s()
        since_s, self._away_since_s = self._away_since_s, None
        self._heard_s = now_s
        self._failures = 0
        if since_s is not None:
            self.away_s_total += now_s - since_s
            for told in self.on_back:
                told()

    def failed(self) -> None:
        self._failures += 1
        self._look()

    def presume_away(self) -> None:
        """Begin an outage at once: there was no control plane when the process started."""
        self._failures += 1
        self._begin_outage()

    def _look(self) -> None:
        if self._away_since_s is None and self._failures and self.silent_s >= self._after_s:
            self._begin_outage()

    def _begin_outage(self) -> None:
        if self._away_since_s is None:
            self._away_since_s = self._heard_s
            self.outages += 1
            for told in self.on_away:
                told()
