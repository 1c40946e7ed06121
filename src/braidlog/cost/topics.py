"""Who caused the bill: an object holds records of many topics, and each PUT's price is shared out over them by bytes.

Pure: time comes in. The number of topics is bounded; those beyond it are counted together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp

from braidlog.cost.bill import Usage, bill
from braidlog.cost.prices import MONTH_S, Price

OTHER_TOPICS = "(other topics)"
"""No topic can have this name."""


@dataclass(frozen=True, slots=True)
class TopicBill:
    upload_bytes: int
    usd: float
    """So far."""
    usd_month: float
    """A month at the pace of late."""


@dataclass(slots=True)
class _Account:
    upload_bytes: int = 0
    usd: float = 0.0
    recent_usd: float = 0.0
    """What was spent, fading with age: see `TopicMeter.bills`."""
    recent_s: float = 0.0
    """When it last had faded."""


def share_out(usd: float, bytes_by_topic: Mapping[str, int]) -> dict[str, float]:
    """A price, by how many bytes each had of it. Evenly, if nobody had any."""
    total_bytes = sum(bytes_by_topic.values())
    if total_bytes == 0:
        return {topic: usd / len(bytes_by_topic) for topic in bytes_by_topic}
    return {topic: usd * size_bytes / total_bytes for topic, size_bytes in bytes_by_topic.items()}


class TopicMeter:
    def __init__(self, price: Price, *, started_s: float, topics_max: int = 1000, memory_s: float = 600.0) -> None:
        """`memory_s`: how far back the pace is taken that a month is projected from."""
        self._price = price
        self._started_s = started_s
        self._topics_max = topics_max
        self._memory_s = memory_s
        self._accounts: dict[str, _Account] = {}

    def add_put(self, bytes_by_topic: Mapping[str, int], *, object_bytes: int, now_s: float) -> None:
        """One PUT of an object of `object_bytes`, of which the topics' records are the larger part."""
        put_usd = bill(Usage(put_count=1, upload_bytes=object_bytes), self._price, elapsed_s=0.0).total_usd
        for topic, usd in share_out(put_usd, bytes_by_topic).items():
            account = self._account(topic)
            account.upload_bytes += bytes_by_topic[topic]
            account.usd += usd
            account.recent_usd = account.recent_usd * self._kept(now_s - account.recent_s) + usd
            account.recent_s = now_s

    def _account(self, topic: str) -> _Account:
        account = self._accounts.get(topic)
        if account is None:
            if len(self._accounts) >= self._topics_max:
                topic = OTHER_TOPICS
            account = self._accounts.setdefault(topic, _Account(recent_s=self._started_s))
        return account

    def _kept(self, age_s: float) -> float:
        return exp(-max(0.0, age_s) / self._memory_s)

    def bills(self, now_s: float) -> dict[str, TopicBill]:
        """By topic, in the order in which they were first seen."""
        # What fades by 1/e in `memory_s` and has been fed evenly since the start has reached this many seconds' worth.
        seconds = self._memory_s * (1.0 - self._kept(now_s - self._started_s))
        return {
            topic: TopicBill(
                upload_bytes=account.upload_bytes,
                usd=account.usd,
                usd_month=(
                    account.recent_usd * self._kept(now_s - account.recent_s) * MONTH_S / seconds
                    if seconds > 0
                    else 0.0
                ),
            )
            for topic, account in self._accounts.items()
        }
