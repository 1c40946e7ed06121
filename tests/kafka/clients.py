"""Four real clients behind one face, so that a test runs over all of them: write these records, read them back."""

import asyncio
import json
import shutil
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import aiokafka
import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING

with warnings.catch_warnings():  # it reads its schemas in a way that Python has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0
    offset: int = -1


class KafkaClient(Protocol):
    name: str

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Record], *, codec: str = "none", acks: str = "all"
    ) -> list[int]:
        """Write to the records' partitions, in order; returns the offsets that the broker gave, where it tells."""
        ...

    def consume(self, bootstrap: str, topic: str, count: int, *, partitions: Sequence[int] = (0,)) -> list[Record]:
        """The first `count` records of these partitions together."""
        ...


def _acks(acks: str) -> int | str:
    return acks if acks == "all" else int(acks)


class ConfluentClient:
    name = "confluent"

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Record], *, codec: str = "none", acks: str = "all"
    ) -> list[int]:
        reports: list[confluent_kafka.Message] = []
        errors: list[confluent_kafka.KafkaError] = []

        def report(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            errors.append(error) if error is not None else reports.append(message)

        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "acks": acks,
                "linger.ms": 5,
                "message.max.bytes": 20_000_000,
                "message.timeout.ms": int(TIMEOUT_S * 1000),
            }
        )
        for record in records:
            extra = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                on_delivery=report,
                **extra,
            )
        assert producer.flush(TIMEOUT_S) == 0
        if errors:
            raise confluent_kafka.KafkaException(errors[0])
        return [message.offset() for message in reports]

    def consume(self, bootstrap: str, topic: str, count: int, *, partitions: Sequence[int] = (0,)) -> list[Record]:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "fetch.message.max.bytes": 20_000_000}
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
            found: list[Record] = []
            deadline_s = time.monotonic() + TIMEOUT_S
            while len(found) < count and time.monotonic() < deadline_s:
                for message in consumer.consume(count - len(found), 0.2):
                    if message.error() is not None:
                        raise confluent_kafka.KafkaException(message.error())
                    found.append(confluent_record(message))
            return found
        finally:
            consumer.close()


def confluent_record(message: confluent_kafka.Message) -> Record:
    return Record(
        message.value(),
        message.key(),
        tuple((name, value) for name, value in message.headers() or ()),
        message.timestamp()[1],
        message.partition(),
        message.offset(),
    )


class AiokafkaClient:
    name = "aiokafka"

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Record], *, codec: str = "none", acks: str = "all"
    ) -> list[int]:
        async def run() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                acks=_acks(acks),
                linger_ms=5,
                max_request_size=20_000_000,
                max_batch_size=1_000_000,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                reports = await asyncio.gather(*futures)
            finally:
                await producer.stop()
            return [report.offset for report in reports if report is not None and acks != "0"]

        return asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))

    def consume(self, bootstrap: str, topic: str, count: int, *, partitions: Sequence[int] = (0,)) -> list[Record]:
        async def run() -> list[Record]:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=20_000_000
            )
            await consumer.start()
            try:
                consumer.assign([aiokafka.TopicPartition(topic, number) for number in partitions])
                found: list[Record] = []
                deadline_s = time.monotonic() + TIMEOUT_S
                while len(found) < count and time.monotonic() < deadline_s:
                    batches = await consumer.getmany(timeout_ms=200, max_records=count - len(found))
                    for messages in batches.values():
                        found.extend(python_record(message) for message in messages)
                return found
            finally:
                await consumer.stop()

        return asyncio.run(run())


def python_record(message: Any) -> Record:
    """From what aiokafka and kafka-python give alike."""
    return Record(
        message.value,
        message.key,
        tuple((name, value) for name, value in message.headers),
        message.timestamp,
        message.partition,
        message.offset,
    )


class KafkaPythonClient:
    name = "kafka-python"

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Record], *, codec: str = "none", acks: str = "all"
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=_acks(acks),
            enable_idempotence=acks == "all",
            linger_ms=5,
            max_request_size=20_000_000,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(TIMEOUT_S)
            offsets = [future.get(TIMEOUT_S).offset for future in futures]
        finally:
            producer.close()
        return [] if acks == "0" else offsets

    def consume(self, bootstrap: str, topic: str, count: int, *, partitions: Sequence[int] = (0,)) -> list[Record]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=20_000_000
        )
        try:
            consumer.assign([kafka.TopicPartition(topic, number) for number in partitions])
            found: list[Record] = []
            deadline_s = time.monotonic() + TIMEOUT_S
            while len(found) < count and time.monotonic() < deadline_s:
                for messages in consumer.poll(timeout_ms=200, max_records=count - len(found)).values():
                    found.extend(python_record(message) for message in messages)
            return found
        finally:
            consumer.close()


class KcatClient:
    """Takes and gives text: no byte beyond ASCII, and the same headers on every record of a call."""

    name = "kcat"

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Record], *, codec: str = "none", acks: str = "all"
    ) -> list[int]:
        for partition in sorted({record.partition for record in records}):
            mine = [record for record in records if record.partition == partition]
            command = ["-P", "-t", topic, "-p", str(partition), "-K", "|", "-Z", "-z", codec, "-X", f"acks={acks}"]
            for name, value in mine[0].headers:
                command += ["-H", f"{name}={(value or b'').decode()}"]
            lines = [(record.key or b"") + b"|" + (record.value or b"") for record in mine]
            self.run(bootstrap, command, b"\n".join(lines) + b"\n")
        return []

    def consume(self, bootstrap: str, topic: str, count: int, *, partitions: Sequence[int] = (0,)) -> list[Record]:
        found: list[Record] = []
        for partition in partitions:
            limit = ["-c", str(count)] if len(partitions) == 1 else ["-e"]
            command = ["-C", "-t", topic, "-p", str(partition), "-o", "beginning", "-J", *limit]
            lines = self.run(bootstrap, command).splitlines()
            found.extend(_kcat_record(json.loads(line)) for line in lines)
        return found[:count]

    def run(self, bootstrap: str, arguments: list[str], text: bytes = b"") -> bytes:
        done = subprocess.run(
            ["kcat", "-b", bootstrap, *arguments],
            input=text,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout


def _kcat_record(envelope: dict[str, Any]) -> Record:
    def encode(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    names_and_values = envelope.get("headers", [])
    headers = zip(names_and_values[::2], names_and_values[1::2], strict=True)
    return Record(
        encode(envelope["payload"]),
        encode(envelope["key"]),
        tuple((name, encode(value)) for name, value in headers),
        envelope["ts"],
        envelope["partition"],
        envelope["offset"],
    )


CLIENTS: dict[str, KafkaClient] = {
    client.name: client for client in (ConfluentClient(), AiokafkaClient(), KafkaPythonClient(), KcatClient())
}
PYTHON_CLIENTS = ("confluent", "aiokafka", "kafka-python")


def has_kcat() -> bool:
    return shutil.which("kcat") is not None


def without_place(records: Sequence[Record]) -> list[Record]:
    """Only what a producer chose: no offset, no partition, no timestamp."""
    return [replace(record, offset=-1, partition=0, timestamp_ms=None) for record in records]


_steady_producers: list["SteadyProducer"] = []


def abandon_steady_producers() -> None:
    """End those that a failed test has left behind, so that they disturb no other."""
    while _steady_producers:
        _steady_producers.pop().abandon()


class SteadyProducer:
    """Writes numbered records from a thread of its own until it is told to stop, and keeps what became of each."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        partition_count: int = 1,
        per_s: float = 500.0,
        padding: bytes = b"",
        count_max: int | None = None,
        **settings: object,
    ) -> None:
        self._topic = topic
        self._partition_count = partition_count
        self._pause_s = 1 / per_s
        self._padding = padding
        self._count_max = count_max
        self.acknowledged: dict[int, tuple[int, int | None]] = {}
        """Partition and offset, by number. The offset is not always told."""
        self.failed: dict[int, str] = {}
        self.sent_count = 0
        self.fatal = ""
        self._stopping = threading.Event()
        self._producer: confluent_kafka.Producer | None = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 2,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 50,
                "socket.timeout.ms": 10_000,
                "error_cb": self._on_error,
                **settings,
            }
        )
        self._thread = threading.Thread(target=self._run, name=f"producer of {topic}", daemon=True)
        self._thread.start()
        _steady_producers.append(self)

    def _on_error(self, error: confluent_kafka.KafkaError) -> None:
        if error.fatal():
            self.fatal = str(error)

    def _run(self) -> None:
        producer = self._producer
        assert producer is not None
        due_s = time.monotonic()
        while not self._stopping.is_set() and self.sent_count != self._count_max:
            number = self.sent_count
            try:
                producer.produce(
                    self._topic,
                    value=b"%d " % number + self._padding,
                    partition=number % self._partition_count,
                    on_delivery=self._report(number),
                )
            except BufferError:
                producer.poll(0.05)
                continue
            self.sent_count += 1
            producer.poll(0)
            due_s = max(due_s + self._pause_s, time.monotonic() - 0.2)
            self._stopping.wait(max(0.0, due_s - time.monotonic()))

    def _report(self, number: int) -> Callable[[confluent_kafka.KafkaError | None, confluent_kafka.Message], None]:
        def report(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is None:
                self.acknowledged[number] = (message.partition(), message.offset())
            else:
                self.failed[number] = str(error)

        return report

    def wait_sent(self, timeout_s: float = 120.0) -> None:
        """Until all of `count_max` were sent."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"only {self.sent_count} were sent"

    def stop(self, timeout_s: float = 120.0, *, drop_unsent: bool = False) -> None:
        """Send no more, and wait until everything sent was answered. What no broker has got may fail at once."""
        self._stopping.set()
        self._thread.join()
        assert self._producer is not None
        if drop_unsent:
            self._producer.purge(in_queue=True, in_flight=False)
        left = self._producer.flush(timeout_s)
        self._producer = None  # its threads end
        _steady_producers.remove(self)
        assert left == 0, f"{left} records were neither acknowledged nor failed within {timeout_s} s"
        assert not self.fatal, self.fatal

    def abandon(self) -> None:
        self._stopping.set()
        self._thread.join()
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(1)
            self._producer = None


def numbers_by_partition(records: Sequence[Record]) -> dict[int, list[int]]:
    """What a `SteadyProducer` wrote, by partition, in the order of the log."""
    found: dict[int, list[int]] = {}
    for record in sorted(records, key=lambda record: (record.partition, record.offset)):
        found.setdefault(record.partition, []).append(number_of(record))
    return found


def number_of(record: Record) -> int:
    """The number of a record that a `SteadyProducer` wrote."""
    assert record.value is not None
    return int(record.value.split(b" ", 1)[0])
