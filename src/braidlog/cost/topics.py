"""The bill by topic.

An object holds records of many topics, which share the price of its PUT by their bytes.

Pure: callers pass the time. The number of topics is bounded; those beyond it are counted together.
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
    """The cost so far."""
    usd_month: float
    """The cost of a month at the recent pace."""


@dataclass(slots=True)
class _Account:
    upload_bytes: int = 0
    usd: float = 0.0
    recent_usd: float = 0.0
    """The money spent, fading with age: see `TopicMeter.bills`."""
    recent_s: float = 0.0
    """When `recent_usd` was last brought up to date."""


def share_out(usd: float, bytes_by_topic: Mapping[str, int]) -> dict[str, float]:
    """Share out a price over topics by their bytes; evenly, if there are no bytes."""
    total_bytes = sum(bytes_by_topic.values())
    if total_bytes == 0:
        return {topic: usd / len(bytes_by_topic) for topic in bytes_by_topic}
    return {topic: usd * size_bytes / total_bytes for topic, size_bytes in bytes_by_topic.items()}


class TopicMeter:
    def __init__(self, price: Price, *, started_s: float, topics_max: int = 1000, memory_s: float = 600.0) -> None:
        """`memory_s` is how far back the pace reaches that a month is projected from."""
        self.price = price
        self._started_s = started_s
        self._topics_max = topics_max
        self._memory_s = memory_s
        self._accounts: dict[str, _Account] = {}

    def add_put(self, bytes_by_topic: Mapping[str, int], *, object_bytes: int, now_s: float) -> None:
        """Count one PUT of an object of `object_bytes`.

        The topics' records are the larger part of it.
        """
        put_usd = bill(Usage(put_count=1, upload_bytes=object_bytes), self.price, elapsed_s=0.0).total_usd
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
        """Return the bill of each topic, in the order in which the topics were first seen."""
        # A sum that fades by 1/e in `memory_s`, and grew evenly since the start, stands for this many seconds.
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
