"""The stage in front of the write path that tells a producer the truth about batches behind one that failed.

An idempotent producer has several batches of a partition under way. Where one cannot be written, for want of a store
or of a shard that has died, those behind it are refused for their sequence numbers. Said like that, it sounds as if the
log had lost something: librdkafka then takes a new epoch, under which whatever else it has under way and does not know
the fate of is written a second time. What it should do is send them again, in order, and so that is what it is told.
"""

from functools import partial

from kio.schema.errors import ErrorCode

from braidlog.writing.request import Done, WriteRequest
from braidlog.writing.stage import RequestStage

SETBACKS_MAX = 10_000
"""Producers' partitions that are remembered. Each is forgotten with its producer's next success."""

_OUT_OF_ORDER = int(ErrorCode.out_of_order_sequence_number)
_SENT_AGAIN = frozenset(
    map(
        int,
        (
            ErrorCode.not_leader_or_follower,
            ErrorCode.not_enough_replicas,
            ErrorCode.not_enough_replicas_after_append,
            ErrorCode.kafka_storage_error,
            ErrorCode.unknown_server_error,
        ),
    )
)
"""What a producer answers by sending the batch again."""


class Setbacks:
    def __init__(self, next_stage: RequestStage) -> None:
        self._next = next_stage
        self._arrived = 0
        self._setbacks: dict[tuple[bytes, int, int, int], int] = {}
        """By topic, partition, producer and epoch: the last request that had arrived when one of them failed. What
        arrives later was sent by a producer that may know of it, and is told what the sequencer says."""

    def submit(self, request: WriteRequest) -> None:
        if request.entry.producer_id >= 0:
            self._arrived += 1
            request.on_done = partial(self._done, self._arrived, request.on_done)
        self._next.submit(request)

    def _done(self, number: int, done: Done, request: WriteRequest) -> None:
        if request.error_code or self._setbacks:
            self._look(number, request)
        done(request)

    def _look(self, number: int, request: WriteRequest) -> None:
        entry = request.entry
        key = (request.topic_id, request.partition, entry.producer_id, entry.producer_epoch)
        code = request.error_code
        if not code:
            self._setbacks.pop(key, None)
            return
        if code == _OUT_OF_ORDER and number <= self._setbacks.get(key, 0):
            request.error_code = code = int(ErrorCode.not_enough_replicas)
            request.error_message = "it was not written, because a batch before it was not"
        if code in _SENT_AGAIN:
            self._setbacks.pop(key, None)
            self._setbacks[key] = self._arrived
            if len(self._setbacks) > SETBACKS_MAX:
                del self._setbacks[next(iter(self._setbacks))]
