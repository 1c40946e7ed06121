"""Answers to produce requests, written when all their batches have their results."""

import asyncio
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.converter import Converter
from braidlog.agent.connections.response_slot import ResponseSlot
from braidlog.runtime.tasks import TaskGroup
from braidlog.wire.header import RequestHeader, frame_start, response_header
from braidlog.wire.produce import (
    FLEXIBLE_FROM,
    KEY,
    ProducedPartition,
    ProducedTopic,
    ProduceResponse,
    write_produce_response,
    write_single_produced,
)
from braidlog.wire.produce_opening import ProduceOpening
from braidlog.writing.request import WriteRequest

ABORTABLE_FROM = 11
"""From this version on, clients know the error that says "abort this transaction, and go on"."""
_NONE = int(ErrorCode.none)

Answer: TypeAlias = ProducedPartition | WriteRequest
_Topics: TypeAlias = list[tuple[str, bytes, list[Answer]]]
"""The name and id of each topic, with the result of each partition's batch, in the order of the request."""


class LongAnswers(NamedTuple):
    """The services that write a long answer without stopping the others."""

    converter: Converter
    tasks: TaskGroup


class PendingProduce:
    """A produce request until all its batches have their results.

    It keeps what the answer needs, and nothing of the request itself, whose frame can be large.
    """

    __slots__ = (
        "_acks",
        "_correlation_id",
        "_long",
        "_open",
        "_slot",
        "_version",
        "is_transactional",
        "throttle_ms",
        "topics",
    )

    def __init__(
        self,
        header: RequestHeader,
        acks: int,
        is_transactional: bool,
        slot: ResponseSlot,
        long: LongAnswers | None,
    ) -> None:
        """With `long`, the answer is written on a thread.

        A long request has many partitions.
        """
        self._long = long
        self._acks = acks
        self.is_transactional = is_transactional
        self._correlation_id = header.correlation_id
        self._version = header.api_version
        self._slot = slot
        self._open = 1
        """The number of batches without a result, plus one until all batches are handed on."""
        self.throttle_ms = 0
        self.topics: _Topics = []

    def expect_more(self, open_count: int) -> None:
        """Wait for this many more batches. Others may follow."""
        self._open += open_count

    def expect(self, open_count: int) -> None:
        """Wait for this many more batches, which are the last.

        Answer at once if none is left.
        """
        self._open += open_count - 1
        if not self._open:
            self._finish()

    def done(self, _: WriteRequest) -> None:
        self._open -= 1
        if not self._open:
            self._finish()

    def _finish(self) -> None:
        topics, self.topics = self.topics, []  # ends a reference cycle, which would wait for the garbage collector
        if self._acks == 0:
            self._end_silently(topics)
            return
        if self._long is not None:
            self._long.tasks.spawn(self._fill_later(topics, self._long.converter))
        else:
            self._fill(*_written(self._version, topics, self.throttle_ms))

    async def _fill_later(self, topics: _Topics, converter: Converter) -> None:
        try:
            self._fill(*await converter.convert(True, _written, self._version, topics, self.throttle_ms))
        except asyncio.CancelledError:
            self._slot.abandon("")
            raise

    def _fill(self, body: bytes, errors: dict[int, int]) -> None:
        for code, count in errors.items():
            self._slot.count_error(KEY, code, count)
        start = response_header(self._correlation_id, self._version >= FLEXIBLE_FROM)
        self._slot.fill([start + body])

    def _end_silently(self, topics: _Topics) -> None:
        failed = [answer for _, _, answers in topics for answer in answers if answer.error_code != _NONE]
        if failed:
            # The only way to tell a producer that wants no answers: it will load its metadata again.
            self._slot.abandon(f"a produce request with acks=0 failed: {failed[0].error_message}")
        else:
            self._slot.fill([])


class PendingSingle:
    """Does what `PendingProduce` does, for a request with one partition.

    The request has the same opening as an earlier one.
    """

    __slots__ = ("_correlation_id", "_opening", "_slot")

    def __init__(self, opening: ProduceOpening, correlation_id: int, slot: ResponseSlot) -> None:
        self._opening = opening
        self._correlation_id = correlation_id
        self._slot = slot

    def done(self, request: WriteRequest) -> None:
        if request.error_code != _NONE:
            self._slot.count_error(KEY, request.error_code)
        version, _, name, topic_id = self._opening
        body = _body(version, [(name, topic_id, [request])])
        self._slot.fill_framed([frame_start(self._correlation_id, version >= FLEXIBLE_FROM, len(body)) + body])


def _written(version: int, topics: _Topics, throttle_ms: int) -> tuple[bytes, dict[int, int]]:
    """The body of the answer, and the number of times that it has each error."""
    errors: dict[int, int] = {}
    for _, _, answers in topics:
        for answer in answers:
            if (code := answer.error_code) != _NONE:
                errors[code] = errors.get(code, 0) + 1
    return _body(version, topics, throttle_ms), errors


def _body(version: int, topics: _Topics, throttle_ms: int = 0) -> bytes:
    if len(topics) == 1 and not throttle_ms:
        name, topic_id, answers = topics[0]
        if len(answers) == 1 and answers[0].error_code == _NONE:
            only = answers[0]
            if isinstance(only, WriteRequest):
                return write_single_produced(
                    version, name, topic_id, only.partition, only.base_offset, only.append_ms, only.log_start_offset
                )
    produced = [
        ProducedTopic(name, topic_id, [_produced(answer, version) for answer in answers])
        for name, topic_id, answers in topics
    ]
    return write_produce_response(version, ProduceResponse(produced, throttle_ms))


def _produced(answer: ProducedPartition | WriteRequest, version: int) -> ProducedPartition:
    if isinstance(answer, ProducedPartition):
        return answer
    code = answer.error_code
    if code == ErrorCode.invalid_txn_state and version >= ABORTABLE_FROM:
        code = ErrorCode.transaction_abortable
    append_ms = answer.append_ms if code == _NONE else -1
    return ProducedPartition(
        answer.partition, code, answer.base_offset, append_ms, answer.log_start_offset, (), answer.error_message
    )
