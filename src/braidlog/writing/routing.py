"""The stage that separates journaled requests from classic ones.

Neither kind waits for the other.

There is one exception. A partition can go over from the journal to the classic path, because its topic's type changed
or an outage ended. Its next requests then wait until all of its records in the journal are sequenced. Otherwise they
would overtake those records, and their producer would hear of a gap that it did not make.
"""

from collections.abc import Callable

from braidlog.records.batch import TRANSACTIONAL_BIT
from braidlog.writing.journal.unsequenced import Partition, Unsequenced
from braidlog.writing.request import WriteRequest
from braidlog.writing.stage import RequestStage


class Routing:
    """Sends each request to the classic or to the journaled path."""

    def __init__(
        self,
        classic: RequestStage,
        journaled: RequestStage,
        is_journaled: Callable[[WriteRequest], bool],
        unsequenced: Unsequenced,
    ) -> None:
        """`is_journaled` is asked for every request.

        Call `release` when `unsequenced` is empty of a partition.
        """
        self._classic = classic
        self._journaled = journaled
        self._is_journaled = is_journaled
        self._unsequenced = unsequenced
        self._waiting: dict[Partition, list[WriteRequest]] = {}
        """Requests that wait for their partition to leave the journal. The agent's memory budget bounds them."""

    @property
    def waiting_count(self) -> int:
        """Requests that wait for their partition to leave the journal."""
        return sum(map(len, self._waiting.values()))

    def submit(self, request: WriteRequest) -> None:
        if self._is_journaled(request):
            if self._waiting:
                # The partition stays in the journal after all, and those that waited go first.
                self.release((request.topic_id, request.partition))
            self._journaled.submit(request)
        elif self._unsequenced and not request.entry.attributes & TRANSACTIONAL_BIT:
            # Transactions have producers of their own, with nothing in the journal.
            self._wait_or_go((request.topic_id, request.partition), request)
        else:
            self._classic.submit(request)

    def _wait_or_go(self, partition: Partition, request: WriteRequest) -> None:
        if partition in self._unsequenced:
            self._waiting.setdefault(partition, []).append(request)
        else:
            self._classic.submit(request)

    def release(self, partition: Partition) -> None:
        """Send on the requests that wait for a partition to leave the journal."""
        for request in self._waiting.pop(partition, ()):
            self.submit(request)
