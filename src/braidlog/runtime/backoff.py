"""Pauses between the attempts of something that may succeed later."""

from dataclasses import dataclass

from braidlog.runtime.entropy import Entropy

_DOUBLINGS_MAX = 64
"""A float holds no power of two above 1023. No bound is doubled even this often before it reaches its maximum."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with jitter.

    It keeps no state: the caller counts the failures.

    The bound of a pause doubles with each failure, up to `max_s`. A pause is drawn between `share_min` of its bound and
    the bound, so that callers that failed together do not all come back at the same moment.
    """

    first_s: float
    max_s: float
    share_min: float = 0.0

    def bound_s(self, failures: int) -> float:
        """Return the longest possible pause after this many earlier failures."""
        return min(self.max_s, self.first_s * 2.0 ** min(failures, _DOUBLINGS_MAX))

    def pause_s(self, failures: int, entropy: Entropy) -> float:
        """Draw the pause to make after this many earlier failures."""
        return entropy.uniform(self.share_min, 1.0) * self.bound_s(failures)
