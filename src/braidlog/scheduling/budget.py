"""The PUT budget: how many uploads may start before they must, so that a lone write need not wait out the interval."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class PutBudget:
    """A token bucket of early uploads. It never delays an upload that size or time demands; those draw on it too, so
    that a month's bill stays near the budget while the load allows it."""

    puts_per_s: float
    """Infinite where PUTs cost nothing."""
    burst: float
    _tokens: float = -1.0
    _refilled_s: float = 0.0

    def _refill(self, now_s: float) -> None:
        if self._tokens < 0 or self.puts_per_s == math.inf:
            self._tokens = self.burst
        else:
            self._tokens = min(self.burst, self._tokens + (now_s - self._refilled_s) * self.puts_per_s)
        self._refilled_s = now_s

    def take_early(self, now_s: float) -> bool:
        """Spend one PUT on an early upload, if the budget has it."""
        self._refill(now_s)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def take_due(self, now_s: float) -> None:
        """Note a PUT that happens anyway."""
        self._refill(now_s)
        self._tokens = max(0.0, self._tokens - 1.0)

    def next_early_s(self, now_s: float) -> float:
        """Seconds until an early upload may be afforded; 0 if it is now."""
        self._refill(now_s)
        if self._tokens >= 1.0:
            return 0.0
        return (1.0 - self._tokens) / self.puts_per_s if self.puts_per_s > 0 else math.inf
