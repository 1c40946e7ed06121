"""Client quotas as an agent holds clients to them: how long one that took too much has to wait. Pure.

Each limited user or client has a bucket that refills at its rate. What it takes beyond what is in the bucket is a debt,
and until it is paid back nothing more is read from the client. As in Kafka a limit holds for each agent by itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from braidlog.control.interface import ClientQuota

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
ANONYMOUS = "ANONYMOUS"
"""The user of a connection that has not said who it is."""

BURST_S = 1.0
"""So many seconds' worth may be taken at once."""
THROTTLE_S_MAX = 30.0
"""The longest wait at a time. The rest of a debt is waited for after the next request."""
BUCKETS_MAX = 10_000

_DEFAULT = "<default>"
# Where a limit is looked for, the most particular first: a user's name, `_DEFAULT` or none; and the same of the client.
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
    """When it was."""

    def take(self, taken_bytes: int, now_s: float) -> float:
        """How long whoever takes them has to wait."""
        refilled = self.filled_bytes + (now_s - self.filled_s) * self.rate_bytes_per_s
        self.filled_bytes = min(refilled, self.rate_bytes_per_s * BURST_S) - taken_bytes
        self.filled_s = now_s
        return max(0.0, -self.filled_bytes / self.rate_bytes_per_s)


class QuotaBook:
    def __init__(self) -> None:
        self.limits_producers = False
        self.limits_consumers = False
        self._quotas: list[ClientQuota] = []
        self._limits: dict[tuple[str, str | None, str | None], float] = {}
        """By quota key, user and client id; a name or `_DEFAULT`, or None where the entity has no such part."""
        self._buckets: dict[tuple[str, str | None, str | None], _Bucket] = {}
        """By quota key and whom it counts: the user, the client, or both. The most recently used last."""

    @property
    def quotas(self) -> list[ClientQuota]:
        return self._quotas

    def load(self, quotas: Iterable[ClientQuota]) -> None:
        """These are all that there are."""
        self._quotas = list(quotas)
        self._limits = {}
        for quota in self._quotas:
            parts = {kind: _DEFAULT if name is None else f"={name}" for kind, name in quota.entity}
            for key, value in quota.values.items():
                self._limits[key, parts.get("user"), parts.get("client-id")] = value
        self.limits_producers = any(key == PRODUCER_BYTE_RATE for key, _, _ in self._limits)
        self.limits_consumers = any(key == CONSUMER_BYTE_RATE for key, _, _ in self._limits)

    def charge(self, key: str, user: str, client_id: str, taken_bytes: int, now_s: float) -> float:
        """How many seconds a client that took so much has to wait; 0 where nothing limits it."""
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
