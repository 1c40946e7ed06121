"""Simulated producers, plain and idempotent."""

import asyncio
from collections.abc import Container
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta
from msgspec import UNSET

from braidlog.objects.layout import SEQUENCE_END
from braidlog.records.batch import BatchProducer
from braidlog.records.record import Record, encode_batch
from braidlog.sim.clients.session import ClientSession
from braidlog.sim.clients.wire_client import Disconnected, request_types
from braidlog.sim.history import Outcome, Send
from braidlog.sim.virtual.clock import EPOCH_MS

PRODUCE = 0
PRODUCE_VERSION = 9
INIT_PRODUCER_ID = 22
INIT_PRODUCER_ID_VERSION = 4

TOMBSTONE_ONE_IN = 8
EPOCH_BUMP_ONE_IN = 6
"""Counts the moments when everything is acknowledged."""
TOMBSTONE_HEADER = "id"
REQUEST_TIMEOUT_S = 40.0
DELIVERY_TIMEOUT_S = 120.0

POSSIBLY_WRITTEN = {
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out,
    ErrorCode.unknown_server_error,
}
"""Errors after which the records may have been written all the same."""


@dataclass(eq=False)
class _Batch:
    """A record batch in flight."""

    first_order: int
    values: list[str]
    invoke_s: float
    sequence: int = -1
    tries: int = 0
    may_be_written: bool = False
    """An attempt ended without a definite refusal."""
    outcome: Outcome | None = None
    offset: int = -1
    error: str = ""
    lazy: bool = False
    """Acknowledged before it had an offset."""
    connection: str = ""


@dataclass(eq=False)
class _Lane:
    """The batches for one partition, in order."""

    topic: str
    partition: int
    queue: list[_Batch] = field(default_factory=list)
    """Not settled yet, oldest first."""
    next_order: int = 0
    next_sequence: int = 0
    producer: tuple[int, int] = (-1, -1)
    """Id and epoch. Each partition has its own, so giving one up does not affect the others."""
    must_renew: bool = False


@dataclass(frozen=True, slots=True)
class ProducerStyle:
    """How a simulated producer sends."""

    idempotent: bool = True
    retries: bool = True
    in_flight_max: int = 5
    """Batches per partition."""
    pause_s: float = 0.3
    """Between two rounds of sends."""
    batch_records_max: int = 3
    key_count: int = 0
    """Every record has one of this many keys, and some records delete their key; 0: records have no keys."""
    bumps_epoch: bool = False
    """Now and then, and after trouble, continue under the same producer id with the next epoch, as newer clients do.
    Otherwise take a new producer id."""


class SimProducer:
    """Sends numbered records until it is told to stop and all are settled.

    An idempotent producer keeps up to `in_flight_max` batches per partition in flight. After an error it waits for all
    of them, and sends again, in order, what is not acknowledged. A plain one sends each batch once, or retries.
    """

    def __init__(
        self,
        session: ClientSession,
        targets: list[tuple[str, int]],
        style: ProducerStyle,
        *,
        journaled: Container[str] = (),
    ) -> None:
        """An acknowledgement of a topic that is `journaled` may come without an offset."""
        self._session = session
        self._lanes = [_Lane(topic, partition) for topic, partition in targets]
        self._style = style
        self._retries = style.retries or style.idempotent
        self._journaled = journaled
        self.stopping = False

    async def run(self) -> None:
        await asyncio.gather(*(self._run_lane(lane) for lane in self._lanes))
        self._session.close()

    # ── one partition ──

    async def _run_lane(self, lane: _Lane) -> None:
        while not self.stopping or lane.queue:
            if self._style.bumps_epoch and not lane.queue and self._session.entropy.below(EPOCH_BUMP_ONE_IN) == 0:
                self._renew_producer(lane)
            while not self.stopping and len(lane.queue) < self._style.in_flight_max:
                lane.queue.append(self._next_batch(lane))
            await self._send_queue(lane)
            await self._session.pause(self._style.pause_s)

    def _next_batch(self, lane: _Lane) -> _Batch:
        count = 1 + self._session.entropy.below(self._style.batch_records_max)
        values = [f"{self._session.name}/{lane.topic}/{lane.partition}/{lane.next_order + at}" for at in range(count)]
        if self._style.key_count:
            values = [self._keyed(value) for value in values]
        batch = _Batch(lane.next_order, values, self._session.now_s)
        lane.next_order += count
        return batch

    def _keyed(self, value: str) -> str:
        entropy = self._session.entropy
        is_tombstone = entropy.below(TOMBSTONE_ONE_IN) == 0
        # Some keys are written often, others rarely.
        key = entropy.below(1 + entropy.below(self._style.key_count))
        return f"k{key}={'!' if is_tombstone else ''}{value}"

    async def _send_queue(self, lane: _Lane) -> None:
        """Send all queued batches in order on one connection, and handle the answers."""
        session = self._session
        try:
            if self._style.idempotent and lane.producer[0] < 0:
                await self._init_producer(lane)
            connection = await session.leader(lane.topic, lane.partition)
        except (Disconnected, TimeoutError) as error:
            self._expire(lane, str(error))
            await session.pause()
            return
        if self._style.idempotent:
            self._number(lane)
        sent = [(batch, connection.send(PRODUCE, PRODUCE_VERSION, self._request(lane, batch))) for batch in lane.queue]
        for batch, _ in sent:
            batch.tries += 1
            batch.connection = connection.label
        await asyncio.wait([future for _, future in sent], timeout=REQUEST_TIMEOUT_S)
        if any(not future.done() for _, future in sent):
            connection.close()
        troubled = False
        for batch, future in sent:
            troubled |= self._take_answer(lane, batch, future, head_of_line=batch is lane.queue[0])
            if batch.outcome is not None:
                self._record(lane, batch)
                lane.queue.remove(batch)
        if lane.must_renew:
            self._renew_producer(lane)
        if troubled:
            session.forget(lane.topic, lane.partition)
            self._expire(lane, "delivery timeout")
            await session.pause()

    def _take_answer(self, lane: _Lane, batch: _Batch, future: asyncio.Future[Any], *, head_of_line: bool) -> bool:
        """Note the answer for a batch.

        Gives True if the connection or the leader may be at fault.
        """
        if not future.done() or future.exception() is not None:
            batch.may_be_written = True
            batch.error = "disconnected"
            if not self._retries:
                batch.outcome = "unknown"
            return True
        answer = future.result().responses[0].partition_responses[0]
        code: ErrorCode = answer.error_code
        if code in {ErrorCode.none, ErrorCode.duplicate_sequence_number}:
            batch.outcome = "ok"
            batch.lazy = answer.base_offset == 0 and lane.topic in self._journaled
            batch.offset = answer.base_offset if code == ErrorCode.none and not batch.lazy else -1
            return False
        batch.error = code.name
        if code in POSSIBLY_WRITTEN:
            batch.may_be_written = True
        if code == ErrorCode.out_of_order_sequence_number and head_of_line:
            # Everything before it is acknowledged, so the log has lost the producer's state. No retry can help.
            batch.outcome = "unknown" if batch.may_be_written else "failed"
            batch.error = "out_of_order_sequence_number at the head of the line"
            lane.must_renew = True
            return True
        if not self._retries or not (code.retriable or code == ErrorCode.out_of_order_sequence_number):
            batch.outcome = "unknown" if batch.may_be_written else "failed"
            lane.must_renew = self._style.idempotent
        return True

    def _expire(self, lane: _Lane, why: str) -> None:
        """Give up batches that have waited too long.

        Their sequence numbers are lost, so the producer id is renewed.
        """
        limit_s = self._session.now_s - DELIVERY_TIMEOUT_S
        while lane.queue and lane.queue[0].invoke_s < limit_s:
            batch = lane.queue.pop(0)
            batch.outcome = "unknown" if batch.may_be_written else "failed"
            batch.error = batch.error or why
            self._record(lane, batch)
            if self._style.idempotent:
                self._renew_producer(lane)

    def _record(self, lane: _Lane, batch: _Batch) -> None:
        for at, value in enumerate(batch.values):
            self._session.history.record(
                Send(
                    client=self._session.name,
                    invoke_s=batch.invoke_s,
                    complete_s=self._session.now_s,
                    topic=lane.topic,
                    partition=lane.partition,
                    value=value,
                    order=batch.first_order + at,
                    producer=self._identity(lane),
                    retried=batch.tries > 1,
                    outcome=batch.outcome or "unknown",
                    offset=batch.offset + at if batch.offset >= 0 else -1,
                    error=batch.error if batch.outcome != "ok" else "",
                    lazy=batch.lazy or UNSET,
                    connection=batch.connection if lane.topic in self._journaled else UNSET,
                )
            )

    def _identity(self, lane: _Lane) -> str:
        """Name the producer within which records keep their order.

        Epochs of one producer may be sequenced in any order.
        """
        if not self._style.idempotent:
            return ""
        producer_id, epoch = lane.producer
        return f"{producer_id}.{epoch}" if self._style.bumps_epoch else f"{producer_id}"

    # ── identity and bytes ──

    async def _init_producer(self, lane: _Lane) -> None:
        types = request_types(INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION)
        connection = await self._session.any_connection()
        answer = await connection.call(
            INIT_PRODUCER_ID,
            INIT_PRODUCER_ID_VERSION,
            types.InitProducerIdRequest(
                transactional_id=None,
                transaction_timeout=i32Timedelta.parse(timedelta(seconds=60)),
                producer_id=-1,
                producer_epoch=-1,
            ),
        )
        if answer.error_code != ErrorCode.none:
            raise Disconnected(f"no producer id: {answer.error_code.name}")
        lane.producer = (answer.producer_id, answer.producer_epoch)

    def _renew_producer(self, lane: _Lane) -> None:
        """Take a new producer id or epoch, because a sequence number was given up.

        Batches that may have been written are not sent again: under a new id they could be in the log twice.
        """
        for batch in [batch for batch in lane.queue if batch.may_be_written]:
            batch.outcome = "unknown"
            self._record(lane, batch)
            lane.queue.remove(batch)
        lane.must_renew = False
        producer_id, epoch = lane.producer
        lane.producer = (producer_id, epoch + 1) if self._style.bumps_epoch and producer_id >= 0 else (-1, -1)
        lane.next_sequence = 0
        for batch in lane.queue:
            batch.sequence = -1

    def _number(self, lane: _Lane) -> None:
        for batch in lane.queue:
            if batch.sequence < 0:
                batch.sequence = lane.next_sequence
                lane.next_sequence = (lane.next_sequence + len(batch.values)) % SEQUENCE_END

    def _request(self, lane: _Lane, batch: _Batch) -> Any:
        types = request_types(PRODUCE, PRODUCE_VERSION)
        now_ms = EPOCH_MS + int(self._session.now_s * 1000)
        records = encode_batch(
            [record_of(at, now_ms, value, has_key=self._style.key_count > 0) for at, value in enumerate(batch.values)],
            producer=BatchProducer(*lane.producer, batch.sequence),
        )
        return types.ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout=i32Timedelta.parse(timedelta(seconds=30)),
            topic_data=(
                types.TopicProduceData(
                    name=lane.topic,
                    partition_data=(types.PartitionProduceData(index=lane.partition, records=records),),
                ),
            ),
        )


def record_of(at: int, timestamp_ms: int, text: str, *, has_key: bool) -> Record:
    """Turn a value of a history into a record.

    A tombstone has no value, so a header identifies it.
    """
    if not has_key:
        return Record(at, timestamp_ms, None, text.encode(), ())
    key, _, value = text.partition("=")
    if value.startswith("!"):
        return Record(at, timestamp_ms, key.encode(), None, ((TOMBSTONE_HEADER, value[1:].encode()),))
    return Record(at, timestamp_ms, key.encode(), value.encode(), ())


def text_of(record: Record) -> str:
    """Turn a record back into a value of a history."""
    if record.key is None:
        return (record.value or b"").decode()
    if record.value is None:
        return f"{record.key.decode()}=!{(dict(record.headers).get(TOMBSTONE_HEADER) or b'').decode()}"
    return f"{record.key.decode()}={record.value.decode()}"
