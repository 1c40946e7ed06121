"""The load of `outage.py`: producers that send batches of many records, and a reader that finds each of them again.

Batches are told apart by their headers alone: an idempotent producer's by its id and sequence number, a plain one's by
its timestamp, of which no two are the same. So nothing need be decoded to know that every record is there once.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from struct import Struct
from typing import Any

from fastcrc.crc32 import iscsi as crc32c
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from braidlog.objects.layout import SEQUENCE_END
from braidlog.records.batch import CRC_START, scan_batches
from braidlog.records.codec import Codec
from braidlog.records.record import Record, encode_batch
from braidlog.sim.clients.consumers import FETCH, FETCH_VERSION, fetch_request, list_offset
from braidlog.sim.clients.producers import (
    INIT_PRODUCER_ID,
    INIT_PRODUCER_ID_VERSION,
    PRODUCE,
    PRODUCE_VERSION,
)
from braidlog.sim.clients.session import ClientSession
from braidlog.sim.clients.wire_client import Disconnected, request_types
from braidlog.sim.virtual.clock import EPOCH_MS

REQUEST_TIMEOUT_S = 40.0
DELIVERY_TIMEOUT_S = 120.0
RETRY_S = 0.1

_CRC, _CRC_AT = Struct(">I"), 17
_TIMES, _TIMES_AT = Struct(">qq"), 27
_PRODUCER, _PRODUCER_AT = Struct(">qhi"), 43

Identity = tuple[int, int]
"""Producer and sequence number, or -1 and the timestamp."""


@dataclass
class Sent:
    """One batch, from when it was due to when its fate was known."""

    partition: int
    identity: Identity
    due_s: float
    acknowledged_s: float = -1.0
    errors: int = 0


@dataclass
class Ledger:
    """The batches that were sent, and how each of them ended."""

    record_count: int
    """The number of records in each batch."""
    sent: list[Sent] = field(default_factory=list)
    failed: list[Sent] = field(default_factory=list)
    acknowledged: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """How often producers got each error and tried again, by the name of the error."""


class Template:
    """One batch, encoded once; each that is sent differs in its header."""

    def __init__(self, record_count: int) -> None:
        records = [Record(at, EPOCH_MS, None, b"reading %06d" % at, ()) for at in range(record_count)]
        self._batch = encode_batch(records, codec=Codec.ZSTD)

    def batch(self, producer: tuple[int, int], sequence: int, timestamp_ms: int) -> bytes:
        batch = bytearray(self._batch)
        _TIMES.pack_into(batch, _TIMES_AT, timestamp_ms, timestamp_ms)
        _PRODUCER.pack_into(batch, _PRODUCER_AT, *producer, sequence)
        _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_START:]))
        return bytes(batch)


class LoadProducer:
    """Sends a batch to its partition whenever one is due, whatever became of those before it, as far as `in_flight_max`
    allows. After an error it waits for what is under way and sends again, in order."""

    def __init__(
        self,
        session: ClientSession,
        topic: str,
        partition: int,
        *,
        idempotent: bool,
        interval_s: float,
        template: Template,
        ledger: Ledger,
        in_flight_max: int = 5,
    ) -> None:
        self._session = session
        self._topic = topic
        self._partition = partition
        self._idempotent = idempotent
        self._interval_s = interval_s
        self._template = template
        self._ledger = ledger
        self._in_flight_max = in_flight_max
        self._producer = (-1, -1)
        self._sequence = 0
        self._waiting: list[tuple[Sent, bytes]] = []
        self.stopping = False

    async def run(self) -> None:
        session, loop = self._session, asyncio.get_running_loop()
        while self._idempotent and self._producer[0] < 0:
            try:
                await self._init()
            except (Disconnected, TimeoutError):
                await session.pause(RETRY_S)
        due_s = loop.time() + session.entropy.uniform(0.0, self._interval_s)
        under_way: list[tuple[Sent, bytes, asyncio.Future[Any]]] = []
        while True:
            if self.stopping and not self._waiting and not under_way:
                return
            while not self.stopping and due_s <= loop.time():
                self._waiting.append(self._next(due_s))
                due_s += self._interval_s
            while self._waiting and len(under_way) < self._in_flight_max:
                sent, batch = self._waiting.pop(0)
                under_way.append((sent, batch, await self._send(batch)))
            futures = [future for _, _, future in under_way]
            timeout_s = max(0.0, due_s - loop.time()) if not self.stopping else REQUEST_TIMEOUT_S
            if futures:
                await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(timeout_s)
            under_way = await self._settle(under_way)

    def _next(self, due_s: float) -> tuple[Sent, bytes]:
        # Of plain producers no two batches have the same time: there is one per partition, and it is patient.
        timestamp_ms = EPOCH_MS + int(due_s * 1000)
        sequence = self._sequence if self._idempotent else -1
        self._sequence = (self._sequence + self._ledger.record_count) % SEQUENCE_END
        identity = (self._producer[0], sequence) if self._idempotent else (-1, timestamp_ms)
        sent = Sent(self._partition, identity, due_s)
        self._ledger.sent.append(sent)
        return sent, self._template.batch(self._producer, sequence, timestamp_ms)

    async def _send(self, batch: bytes) -> "asyncio.Future[Any]":
        types = request_types(PRODUCE, PRODUCE_VERSION)
        data = types.PartitionProduceData(index=self._partition, records=batch)
        request = types.ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout=i32Timedelta.parse(timedelta(seconds=30)),
            topic_data=(types.TopicProduceData(name=self._topic, partition_data=(data,)),),
        )
        try:
            connection = await self._session.leader(self._topic, self._partition)
        except (Disconnected, TimeoutError) as error:
            failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            failed.set_exception(Disconnected(str(error)))
            return failed
        return connection.send(PRODUCE, PRODUCE_VERSION, request)

    async def _settle(
        self, under_way: list[tuple[Sent, bytes, "asyncio.Future[Any]"]]
    ) -> list[tuple[Sent, bytes, "asyncio.Future[Any]"]]:
        """Take in what is answered, and return what is not. With an error, nothing is: all is waited for first."""
        loop, ledger = asyncio.get_running_loop(), self._ledger
        if any(future.done() and _error(future) for _, _, future in under_way):
            await asyncio.wait([future for _, _, future in under_way], timeout=REQUEST_TIMEOUT_S)
        again: list[tuple[Sent, bytes]] = []
        rest = []
        for sent, batch, future in under_way:
            if not future.done():
                rest.append((sent, batch, future))
                continue
            error = _error(future)
            if not error:
                sent.acknowledged_s = loop.time()
                ledger.acknowledged += 1
            elif loop.time() - sent.due_s < DELIVERY_TIMEOUT_S:
                sent.errors += 1
                ledger.errors[error] += 1
                again.append((sent, batch))
            else:
                ledger.failed.append(sent)
        if again:
            self._waiting = again + self._waiting
            self._session.forget(self._topic, self._partition)
            await self._session.pause(RETRY_S)
        return rest

    async def _init(self) -> None:
        types = request_types(INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION)
        request = types.InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout=i32Timedelta.parse(timedelta(seconds=60)),
            producer_id=-1,
            producer_epoch=-1,
        )
        connection = await self._session.any_connection()
        answer = await connection.call(INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION, request)
        if answer.error_code != ErrorCode.none:
            raise Disconnected(f"no producer id: {answer.error_code.name}")
        self._producer = (answer.producer_id, answer.producer_epoch)


def _error(future: "asyncio.Future[Any]") -> str:
    """Return the name of the error; empty if there was none."""
    if future.exception() is not None:
        return "disconnected"
    code = future.result().responses[0].partition_responses[0].error_code
    return "" if code in {ErrorCode.none, ErrorCode.duplicate_sequence_number} else str(code.name)


async def read_partition(session: ClientSession, topic: str, partition: int) -> list[Identity]:
    """The batches of a partition, in the order of the log."""
    end = await session.retry(lambda: list_offset(session, topic, partition, "latest"))
    found: list[Identity] = []
    offset = 0
    while offset < end:

        async def read(at: int = offset) -> Any:
            connection = await session.leader(topic, partition)
            answer = await connection.call(FETCH, FETCH_VERSION, fetch_request(topic, partition, at, wait_s=0.5))
            part = answer.responses[0].partitions[0]
            if part.error_code != ErrorCode.none:
                session.forget(topic, partition)
                raise Disconnected(f"fetch: {part.error_code.name}")
            return part.records or b""

        for _, header in scan_batches(memoryview(await session.retry(read))):
            if header.base_offset >= offset:
                is_idempotent = header.producer_id >= 0
                second = header.base_sequence if is_idempotent else header.timestamp_ms_base
                found.append((header.producer_id if is_idempotent else -1, second))
                offset = header.end_offset
    return found
