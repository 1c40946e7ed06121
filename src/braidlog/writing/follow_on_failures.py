"""Tells a producer the truth about batches behind one that failed.

This is a result stage.

An idempotent producer has several batches of a partition under way. If one of them cannot be written, because the store
or another shard failed, the sequencer refuses those behind it for their sequence numbers. To the producer that error
sounds as if the log had lost something: librdkafka then takes a new epoch, and writes a second time whatever else it
has under way without knowing its fate. What it should do is send the batches again, in order. So that is what this
stage tells it.
"""

from kio.schema.errors import ErrorCode

from braidlog.objects.layout import SEQUENCE_END
from braidlog.runtime.clock import Clock
from braidlog.writing.request import WriteRequest

FAILURES_MAX = 10_000
"""Failures to remember, one for each producer and partition. A failure is forgotten when its batch is written."""
FAILURE_S = 30.0
"""How long a producer has to send a failed batch again. After that it hears what the sequencer says."""

_OUT_OF_ORDER = int(ErrorCode.out_of_order_sequence_number)
_SENT_AGAIN = frozenset(
    map(
        int,
        (
            ErrorCode.not_leader_or_follower,
            ErrorCode.not_enough_replicas,
            ErrorCode.not_enough_replicas_after_append,
            ErrorCode.kafka_storage_error,
        ),
    )
)
"""Errors to which a producer responds by sending the batch again."""


class FollowOnFailures:
    """The last stage on the way back of every idempotent producer's batch."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[tuple[bytes, int, int, int], tuple[int, float]] = {}
        """The sequence number from which on nothing was written, and until when that excuses batches that are refused
        behind it; by topic, partition, producer and epoch."""

    def answered(self, request: WriteRequest) -> None:
        if request.error_code or self._failures:
            self._look(request)
        request.on_done(request)

    def _look(self, request: WriteRequest) -> None:
        entry = request.entry
        key = (request.topic_id, request.partition, entry.producer_id, entry.producer_epoch)
        failure = self._failures.get(key)
        is_behind = failure is not None and (entry.base_sequence - failure[0]) % SEQUENCE_END < SEQUENCE_END // 2
        code = request.error_code
        if not code:
            if is_behind:
                del self._failures[key]
        elif code == _OUT_OF_ORDER:
            # Also a batch that arrives only now: it may have been sent before its producer could read of the failure.
            if failure is not None and is_behind and self._clock.monotonic_s() < failure[1]:
                request.error_code = int(ErrorCode.not_enough_replicas)
                request.error_message = "it was not written, because a batch before it was not"
        elif code in _SENT_AGAIN:
            first = failure[0] if failure is not None and is_behind else entry.base_sequence
            self._failures.pop(key, None)
            self._failures[key] = (first, self._clock.monotonic_s() + FAILURE_S)
            if len(self._failures) > FAILURES_MAX:
                del self._failures[next(iter(self._failures))]
