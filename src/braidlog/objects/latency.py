"""A seeded model of a cloud store's latency.

It is for trials, benchmarks and the simulator.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import exp, log

from braidlog.objects.store import Store
from braidlog.objects.wrapper import Request, StoreWrapper, T, response_bytes
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import InvalidSetting

_NORMAL_P95 = 1.6449
_NORMAL_P99 = 2.3263
_NORMAL_MAX = 3.5
"""Draws beyond it, about one in 4,000, are cut off, so that no request hangs."""
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class LatencyProfile:
    put_s_median: float
    get_s_median: float
    upload_bytes_per_s: float
    download_bytes_per_s: float


PROFILES = {
    "s3": LatencyProfile(0.120, 0.015, 90 * _MEGABYTE, 600 * _MEGABYTE),
    "s3-express": LatencyProfile(0.008, 0.004, 200 * _MEGABYTE, 600 * _MEGABYTE),
}


def latency_profile(name: str) -> LatencyProfile:
    profile = PROFILES.get(name)
    if profile is None:
        raise InvalidSetting(f"unknown latency profile {name!r}", help=f"Use one of {', '.join(PROFILES)}.")
    return profile


def latency_factor(normal: float) -> float:
    """Turn a standard normal draw into a multiple of the median.

    It is 2 at the 95th percentile, and 4 at the 99th.

    No single log-normal has both, so the exponent has a steeper piece from the 95th percentile on.
    """
    bounded = max(-_NORMAL_MAX, min(_NORMAL_MAX, normal))
    if bounded <= _NORMAL_P95:
        return exp(log(2) * bounded / _NORMAL_P95)
    return exp(log(2) * (1 + (bounded - _NORMAL_P95) / (_NORMAL_P99 - _NORMAL_P95)))


class SlowStore(StoreWrapper):
    """Delays requests: before a write, and after a read.

    So an object exists only after its upload.
    """

    def __init__(self, inner: Store, profile: LatencyProfile, *, clock: Clock, entropy: Entropy) -> None:
        super().__init__(inner)
        self._profile = profile
        self._clock = clock
        self._entropy = entropy

    async def _around(self, request: Request, call: Callable[[], Awaitable[T]]) -> T:
        profile = self._profile
        factor = latency_factor(self._entropy.normal())
        if request.operation.writes:
            wait_s = profile.put_s_median * factor + request.upload_bytes / profile.upload_bytes_per_s
            await self._clock.sleep(wait_s)
            return await call()
        result = await call()
        await self._clock.sleep(profile.get_s_median * factor + response_bytes(result) / profile.download_bytes_per_s)
        return result
