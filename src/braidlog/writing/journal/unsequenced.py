"""Counts this agent's unsequenced journal requests, by partition.

They are bound for the journal or in it.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from braidlog.writing.request import WriteRequest
from braidlog.writing.stage import ResultStage

Partition: TypeAlias = tuple[bytes, int]
"""Topic id and index."""


class Unsequenced:
    """Counts a request from when it is bound for the journal.

    It is counted until its file is sequenced, it fails, or its file is left to be replayed.

    This is also the first result stage of journaled requests. It stands before the one that acknowledges in order, so
    that it sees whether a request really was written.
    """

    def __init__(
        self,
        next_back: ResultStage,
        *,
        on_empty: Callable[[Partition], None],
        on_left: Callable[[list[Partition]], None],
    ) -> None:
        """`on_empty` is called when a partition has none any more.

        `on_left` gets the partitions of a file that this agent could not have sequenced: somebody has to replay it.
        """
        self._next_back = next_back
        self._on_empty = on_empty
        self._on_left = on_left
        self._counts: dict[Partition, int] = {}

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, partition: Partition) -> None:
        self._counts[partition] = self._counts.get(partition, 0) + 1

    def answered(self, request: WriteRequest) -> None:
        """Stop counting a request that failed.

        One that was written counts until its file is sequenced.
        """
        if request.error_code:
            self._remove((request.topic_id, request.partition), 1)
        self._next_back.answered(request)

    def sequenced(self, requests: Mapping[Partition, int]) -> None:
        for partition, count in requests.items():
            self._remove(partition, count)

    def left(self, requests: Mapping[Partition, int]) -> None:
        self._on_left(list(requests))
        self.sequenced(requests)

    def _remove(self, partition: Partition, count: int) -> None:
        remaining = self._counts.get(partition, 0) - count
        if remaining > 0:
            self._counts[partition] = remaining
        else:
            self._counts.pop(partition, None)
            self._on_empty(partition)
