"""Client quotas: how long a client that exceeded its byte rate has to wait. Pure.

Each limited user or client has a bucket that refills at its rate. Bytes beyond the content of the bucket are a debt.
Until the debt is paid back, nothing is read from the client. As in Kafka, each agent applies a limit on its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from braidlog.control.interface import ClientQuota

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"

BURST_S = 1.0
"""How many seconds' worth of bytes may be taken at once."""
THROTTLE_S_MAX = 30.0
"""The longest single wait. The client waits for the rest of its debt after its next request."""
BUCKETS_MAX = 10_000

_DEFAULT = "<default>"
# Where to look for a limit, the most specific first: a user's name, `_DEFAULT` or none; then the same for the client.
_PLACES = (
    ("name", "name"),
    ("name", _DEFAULT),
    ("name", None),
    (_DEFAULT, "name"),
    (_DEFAULT, _DEFAULT),
    (_DEFAULT, None),
    (None, "name"),
    (None, _DEFAULT),
)


@dataclass(slots=True)
class _Bucket:
    rate_bytes_per_s: float
    filled_bytes: float
    filled_s: float
    """The time at which `filled_bytes` was true."""

    def take(self, taken_bytes: int, now_s: float) -> float:
        """Take bytes. Returns how long the client has to wait."""
        refilled = self.filled_bytes + (now_s - self.filled_s) * self.rate_bytes_per_s
        self.filled_bytes = min(refilled, self.rate_bytes_per_s * BURST_S) - taken_bytes
        self.filled_s = now_s
        return max(0.0, -self.filled_bytes / self.rate_bytes_per_s)


class QuotaBook:
    """The quotas of the cluster, and what each client has taken here."""

    def __init__(self) -> None:
        self.limits_producers = False
        self.limits_consumers = False
        self._quotas: list[ClientQuota] = []
        self._limits: dict[tuple[str, str | None, str | None], float] = {}
        """Limits by quota key, user and client id: `=name`, `_DEFAULT`, or None if the entity has no such part."""
        self._buckets: dict[tuple[str, str | None, str | None], _Bucket] = {}
        """Buckets by quota key and the user, the client or both. The most recently used one is last."""

    @property
    def quotas(self) -> list[ClientQuota]:
        return self._quotas

    def load(self, quotas: Iterable[ClientQuota]) -> None:
        """Replace all quotas by these."""
        self._quotas = list(quotas)
        self._limits = {}
        for quota in self._quotas:
            parts = {kind: _DEFAULT if name is None else f"={name}" for kind, name in quota.entity}
            for key, value in quota.values.items():
                self._limits[key, parts.get("user"), parts.get("client-id")] = value
        self.limits_producers = any(key == PRODUCER_BYTE_RATE for key, _, _ in self._limits)
        self.limits_consumers = any(key == CONSUMER_BYTE_RATE for key, _, _ in self._limits)

    def charge(self, key: str, user: str, client_id: str, taken_bytes: int, now_s: float) -> float:
        """Charge bytes to a client.

        Returns how many seconds it has to wait; 0 if nothing limits it.
        """
        for user_part, client_part in _PLACES:
            place = (
                f"={user}" if user_part == "name" else user_part,
                f"={client_id}" if client_part == "name" else client_part,
            )
            rate = self._limits.get((key, *place))
            if rate is not None:
                whom = (key, user if user_part else None, client_id if client_part else None)
                return min(self._bucket(whom, rate, now_s).take(taken_bytes, now_s), THROTTLE_S_MAX)
        return 0.0

    def _bucket(self, whom: tuple[str, str | None, str | None], rate: float, now_s: float) -> _Bucket:
        bucket = self._buckets.pop(whom, None)
        if bucket is None:
            bucket = _Bucket(rate, rate * BURST_S, now_s)
            if len(self._buckets) >= BUCKETS_MAX:
                del self._buckets[next(iter(self._buckets))]
        elif bucket.rate_bytes_per_s != rate:
            bucket.rate_bytes_per_s = rate
        self._buckets[whom] = bucket
        return bucket
