"""The stage that parts what is journaled from what is not: neither waits for the other.

But where a partition goes over from the journal to the classic path, for another type of its topic or for the end of an
outage, what comes next waits until all of it that is in the journal is sequenced. Or it would overtake it, and its
producer would be told of a gap that it did not make.
"""

from collections.abc import Callable

from braidlog.agent.unsequenced import Partition, Unsequenced
from braidlog.records.batch import TRANSACTIONAL_BIT
from braidlog.writing.request import WriteRequest
from braidlog.writing.stage import RequestStage


class Routing:
    def __init__(
        self,
        classic: RequestStage,
        journaled: RequestStage,
        is_journaled: Callable[[WriteRequest], bool],
        unsequenced: Unsequenced,
    ) -> None:
        """`is_journaled` is asked for every request."""
        self._classic = classic
        self._journaled = journaled
        self._is_journaled = is_journaled
        self._unsequenced = unsequenced
        self._held: dict[Partition, list[WriteRequest]] = {}
        """What waits for its partition to leave the journal. The agent's memory budget bounds it."""
        unsequenced.on_empty = self._release

    @property
    def held(self) -> int:
        return sum(map(len, self._held.values()))

    def submit(self, request: WriteRequest) -> None:
        if self._is_journaled(request):
            if self._held:
                # It stays in the journal after all, and those that waited go first.
                self._release((request.topic_id, request.partition))
            self._journaled.submit(request)
        elif self._unsequenced and not request.entry.attributes & TRANSACTIONAL_BIT:
            # Transactions have producers of their own, with nothing in the journal.
            self._wait_or_go((request.topic_id, request.partition), request)
        else:
            self._classic.submit(request)

    def _wait_or_go(self, partition: Partition, request: WriteRequest) -> None:
        if partition in self._unsequenced:
            self._held.setdefault(partition, []).append(request)
        else:
            self._classic.submit(request)

    def _release(self, partition: Partition) -> None:
        for request in self._held.pop(partition, ()):
            self.submit(request)
