"""Whether the control plane is there, by what became of the calls to it. Pure but for the clock."""

from collections.abc import Callable

from braidlog.runtime.clock import Clock


class Reachability:
    """It is away when calls fail and none was answered for `after_s`. A single answer, whatever it says, brings it
    back: agents are heard of every few seconds, so nothing else need look for it.

    Silence alone is not enough, or a process that was suspended for a while would think that everybody else was.
    """

    def __init__(self, clock: Clock, after_s: float) -> None:
        self._clock = clock
        self._after_s = after_s
        self._heard_s = clock.monotonic_s()
        self._failures = 0
        self._away_since_s: float | None = None
        self.outages = 0
        """How many there were, a present one included."""
        self.away_s_total = 0.0
        """Of those that are over."""
        self.on_away: list[Callable[[], None]] = []
        """Called when an outage is noticed."""
        self.on_back: list[Callable[[], None]] = []
        """Called when one is over."""

    @property
    def is_away(self) -> bool:
        self._look()
        return self._away_since_s is not None

    @property
    def is_doubtful(self) -> bool:
        """The last call failed: it may be away, or merely slow."""
        return self._failures > 0

    @property
    def silent_s(self) -> float:
        """How long ago the last answer came."""
        return self._clock.monotonic_s() - self._heard_s

    @property
    def away_s(self) -> float:
        """How long this outage has lasted, from the last answer on; 0 where there is none."""
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
        """It was not there when this process started."""
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
