"""Acknowledges an idempotent producer's batches in their order.

This is a result stage.

Files of a journal succeed and fail independently of each other. But a producer that hears that a later batch was
written takes the earlier ones for written too (librdkafka does, whatever it heard of them). So behind a batch that
failed nothing is acknowledged until that one has been sent again. What is in the journal already is then there
twice, and the sequencer drops one of them.
"""

from collections import deque
from typing import TypeAlias

from kio.schema.errors import ErrorCode

from braidlog.objects.layout import SEQUENCE_END
from braidlog.runtime.clock import Clock
from braidlog.writing.request import WriteRequest
from braidlog.writing.stage import ResultStage

FAILURES_MAX = 10_000
"""Failures to remember, one for each producer and partition. A failure is forgotten when its batch is written."""
FAILURE_S = 120.0
"""How long a producer has to send a failed batch again: the time after which clients give a record up."""

_DUPLICATE = int(ErrorCode.duplicate_sequence_number)
"""Written long ago: clients take it for a success."""

_Line: TypeAlias = tuple[bytes, int, int, int]
"""Topic, partition, producer and epoch."""


class AckOrder:
    """Holds back results until those of all earlier batches are known.

    On their way in, requests are announced by `expect`, in the order of their arrival. Requests without a producer id
    pass.
    """

    def __init__(self, next_back: ResultStage, clock: Clock) -> None:
        self._next_back = next_back
        self._clock = clock
        self._unanswered: dict[_Line, deque[WriteRequest]] = {}
        """Announced and not passed on yet, in the order of arrival."""
        self._decided: set[int] = set()
        """The ids of those whose own result is known."""
        self._failures: dict[_Line, tuple[int, float]] = {}
        """The first sequence number of the batch that failed, and until when to wait for it."""

    def expect(self, request: WriteRequest) -> None:
        """Give an idempotent producer's request its position among the results."""
        entry = request.entry
        line = (request.topic_id, request.partition, entry.producer_id, entry.producer_epoch)
        self._unanswered.setdefault(line, deque()).append(request)

    def answered(self, request: WriteRequest) -> None:
        entry = request.entry
        if entry.producer_id < 0:
            request.on_done(request)
            return
        line = (request.topic_id, request.partition, entry.producer_id, entry.producer_epoch)
        decided = self._decided
        decided.add(id(request))
        unanswered = self._unanswered[line]
        while unanswered and id(unanswered[0]) in decided:
            first = unanswered.popleft()
            decided.remove(id(first))
            if not unanswered:
                del self._unanswered[line]
            if first.error_code or self._failures:
                self._look(line, first)
            self._next_back.answered(first)

    def _look(self, line: _Line, request: WriteRequest) -> None:
        sequence = request.entry.base_sequence
        now_s = self._clock.monotonic_s()
        failure = self._failures.get(line)
        if failure is not None and now_s >= failure[1]:
            del self._failures[line]
            failure = None
        distance = (sequence - failure[0]) % SEQUENCE_END if failure is not None else 0
        is_behind = 0 < distance < SEQUENCE_END // 2
        if request.error_code and request.error_code != _DUPLICATE:
            if not is_behind:
                self._failures.pop(line, None)
                self._failures[line] = (sequence, now_s + FAILURE_S)
                if len(self._failures) > FAILURES_MAX:
                    del self._failures[next(iter(self._failures))]
        elif is_behind:
            request.error_code = int(ErrorCode.not_enough_replicas_after_append)
            request.error_message = "a batch before it was not written"
        elif failure is not None and distance == 0:
            del self._failures[line]
