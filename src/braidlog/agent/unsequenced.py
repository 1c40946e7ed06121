"""Which partitions have records in this agent's part of the journal that are not sequenced yet."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from braidlog.writing.request import Done, WriteRequest
from braidlog.writing.stage import RequestStage

Partition: TypeAlias = tuple[bytes, int]
"""Topic id and index."""


class Unsequenced:
    """Counts requests by partition, from the moment that they are bound for the journal until they are sequenced, are
    not written after all, or are left to be replayed."""

    def __init__(self) -> None:
        self._counts: dict[Partition, int] = {}
        self.on_empty: Callable[[Partition], None] = lambda partition: None
        """Called when a partition has none any more."""
        self.on_left: Callable[[list[Partition]], None] = lambda partitions: None
        """Called with partitions of a file that this agent could not have sequenced: somebody has to replay it."""

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, partition: Partition) -> None:
        self._counts[partition] = self._counts.get(partition, 0) + 1

    def remove(self, partition: Partition, count: int = 1) -> None:
        remaining = self._counts.get(partition, 0) - count
        if remaining > 0:
            self._counts[partition] = remaining
        else:
            self._counts.pop(partition, None)
            self.on_empty(partition)

    def sequenced(self, requests: Mapping[Partition, int]) -> None:
        for partition, count in requests.items():
            self.remove(partition, count)

    def left(self, requests: Mapping[Partition, int]) -> None:
        self.on_left(list(requests))
        self.sequenced(requests)


class Entering:
    """The stage that counts. It stands behind the one that acknowledges in order, so that it sees what really became of
    each request: what is written is counted until its file is sequenced, and what is not only until now."""

    def __init__(self, next_stage: RequestStage, unsequenced: Unsequenced) -> None:
        self._next = next_stage
        self._unsequenced = unsequenced

    def submit(self, request: WriteRequest) -> None:
        self._unsequenced.add((request.topic_id, request.partition))
        request.on_done = partial(self._done, request.on_done)
        self._next.submit(request)

    def _done(self, done: Done, request: WriteRequest) -> None:
        if request.error_code:
            self._unsequenced.remove((request.topic_id, request.partition))
        done(request)
