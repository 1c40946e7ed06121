"""The stage in front of the journal that acknowledges an idempotent producer's batches in their order.

Files of a journal succeed and fail independently of each other. But a producer that is told that a later batch was
written takes the earlier ones for written too (librdkafka does, whatever it was told of them). So behind a batch that
failed nothing is acknowledged until that one has been sent again. What is in the journal already is then there
twice, and the sequencer drops one of them.
"""

from collections import deque
from functools import partial
from typing import TypeAlias

from kio.schema.errors import ErrorCode

from braidlog.objects.layout import SEQUENCE_END
from braidlog.runtime.clock import Clock
from braidlog.writing.request import Done, WriteRequest
from braidlog.writing.stage import RequestStage

FAILURES_MAX = 10_000
"""Producers' partitions with a failure that are remembered; each until what failed was written after all."""
FAILURE_S = 120.0
"""So long a producer has to send again what failed: the time after which clients give a record up."""

_DUPLICATE = int(ErrorCode.duplicate_sequence_number)
"""Written long ago: clients take it for a success."""

_Line: TypeAlias = tuple[bytes, int, int, int]
"""Topic, partition, producer and epoch."""


class AckOrder:
    def __init__(self, next_stage: RequestStage, clock: Clock) -> None:
        self._next = next_stage
        self._clock = clock
        self._waiting: dict[_Line, deque[WriteRequest]] = {}
        """What is not answered yet, in the order of arrival."""
        self._done: dict[int, Done] = {}
        """By a request's id: what answers it, once its own fate is known."""
        self._failures: dict[_Line, tuple[int, float]] = {}
        """The first sequence number of the batch that failed, and how long it is waited for."""

    def submit(self, request: WriteRequest) -> None:
        entry = request.entry
        if entry.producer_id >= 0:
            line = (request.topic_id, request.partition, entry.producer_id, entry.producer_epoch)
            self._waiting.setdefault(line, deque()).append(request)
            request.on_done = partial(self._decided, line, request.on_done)
        self._next.submit(request)

    def _decided(self, line: _Line, done: Done, request: WriteRequest) -> None:
        self._done[id(request)] = done
        waiting = self._waiting[line]
        while waiting and (first_done := self._done.pop(id(waiting[0]), None)) is not None:
            first = waiting.popleft()
            if not waiting:
                del self._waiting[line]
            if first.error_code or self._failures:
                self._look(line, first)
            first_done(first)

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
