"""The billing stage: counts uploaded bytes and their cost by topic.

It changes nothing.
"""

from collections.abc import Callable

from braidlog.cost.topics import TopicMeter
from braidlog.runtime.clock import Clock
from braidlog.writing.request import Draft
from braidlog.writing.stage import DraftStage


class Billing:
    """Shares the price of each stored object among its topics.

    It stands behind the upload, so that it sees only objects that are in the store. Failed uploads count only in the
    store's own bill (`braidlog_store_usd_total`).
    """

    def __init__(
        self, next_stage: DraftStage, meter: TopicMeter, clock: Clock, *, topic_name: Callable[[bytes], str]
    ) -> None:
        self._next = next_stage
        self._meter = meter
        self._clock = clock
        self._topic_name = topic_name

    def submit(self, draft: Draft) -> None:
        bytes_by_topic: dict[str, int] = {}
        topic_id, name = b"", ""
        for (next_topic_id, _), requests in draft.partitions.items():
            if next_topic_id != topic_id:
                topic_id, name = next_topic_id, self._topic_name(next_topic_id)
            size_bytes = sum([request.entry.length for request in requests])
            bytes_by_topic[name] = bytes_by_topic.get(name, 0) + size_bytes
        self._meter.add_put(bytes_by_topic, object_bytes=len(draft.packed), now_s=self._clock.monotonic_s())
        self._next.submit(draft)
