"""The billing stage: counts, by topic, what was uploaded and what it cost. It changes nothing on the way."""

from collections.abc import Callable

from braidlog.cost.topics import TopicMeter
from braidlog.runtime.clock import Clock
from braidlog.writing.request import Draft
from braidlog.writing.stage import DraftStage


class Billing:
    """Stands behind the upload, so that it sees objects that are in the store. What failed on the way there is in the
    store's own bill alone (`braidlog_store_usd_total`)."""

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
        for (group_topic_id, _), requests in draft.groups.items():
            if group_topic_id != topic_id:
                topic_id, name = group_topic_id, self._topic_name(group_topic_id)
            size_bytes = sum([request.entry.length for request in requests])
            bytes_by_topic[name] = bytes_by_topic.get(name, 0) + size_bytes
        self._meter.add_put(bytes_by_topic, object_bytes=len(draft.packed), now_s=self._clock.monotonic_s())
        self._next.submit(draft)
