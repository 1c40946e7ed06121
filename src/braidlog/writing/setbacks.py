"""The stage in front of the write path that tells a producer the truth about batches behind one that failed.

An idempotent producer has several batches of a partition under way. Where one cannot be written, for want of a store
or of a shard that has died, those behind it are refused for their sequence numbers. Said like that, it sounds as if the
log had lost something: librdkafka then takes a new epoch, under which whatever else it has under way and does not know
the fate of is written a second time. What it should do is send them again, in order, and so that is what it is told.
"""

from functools import partial

from kio.schema.errors import ErrorCode

from braidlog.objects.layout import SEQUENCE_END
from braidlog.runtime.clock import Clock
from braidlog.writing.request import Done, WriteRequest
from braidlog.writing.stage import RequestStage

SETBACKS_MAX = 10_000
"""Producers' partitions that are remembered. Each is forgotten when what failed was written after all."""
SETBACK_S = 30.0
"""So long a producer has to send again what failed. One that does not is told what the sequencer says."""

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
"""What a producer answers by sending the batch again."""


class Setbacks:
    def __init__(self, next_stage: RequestStage, clock: Clock) -> None:
        self._next = next_stage
        self._clock = clock
        self._setbacks: dict[tuple[bytes, int, int, int], tuple[int, float]] = {}
        """By topic, partition, producer and epoch: the sequence number from which on nothing was written, and until
        when that excuses what is refused behind it."""

    def submit(self, request: WriteRequest) -> None:
        if request.entry.producer_id >= 0:
            request.on_done = partial(self._done, request.on_done)
        self._next.submit(request)

    def _done(self, done: Done, request: WriteRequest) -> None:
        if request.error_code or self._setbacks:
            self._look(request)
        done(request)

    def _look(self, request: WriteRequest) -> None:
        entry = request.entry
        key = (request.topic_id, request.partition, entry.producer_id, entry.producer_epoch)
        setback = self._setbacks.get(key)
        is_behind = setback is not None and (entry.base_sequence - setback[0]) % SEQUENCE_END < SEQUENCE_END // 2
        code = request.error_code
        if not code:
            if is_behind:
                del self._setbacks[key]
        elif code == _OUT_OF_ORDER:
            # Also what arrives only now: it may have been sent before its producer could read of the failure.
            if setback is not None and is_behind and self._clock.monotonic_s() < setback[1]:
                request.error_code = int(ErrorCode.not_enough_replicas)
                request.error_message = "it was not written, because a batch before it was not"
        elif code in _SENT_AGAIN:
            first = setback[0] if setback is not None and is_behind else entry.base_sequence
            self._setbacks.pop(key, None)
            self._setbacks[key] = (first, self._clock.monotonic_s() + SETBACK_S)
            if len(self._setbacks) > SETBACKS_MAX:
                del self._setbacks[next(iter(self._setbacks))]
