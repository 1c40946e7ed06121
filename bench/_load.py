"""The load: ready-made frames over plain blocking sockets, one thread for each connection.

Threads spend their time in system calls, which release the interpreter's lock, so that on a small machine the broker is
what is measured and not its client.
"""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from _frames import FetchFrame, ProduceFrame, init_producer_id_frame, produce_error_position, read_init_producer_id
from braidlog.records.batch import HEADER_BYTES, read_header
from braidlog.records.record import read_batch
from braidlog.runtime.sockets import leave_unpaced

Address = tuple[str, int]

SOCKET_TIMEOUT_S = 60.0
RECEIVE_BYTES = 1024 * 1024
FETCH_BYTES_MAX = 50 * 1024 * 1024
BLOCK_REQUESTS = 64
"""Small requests that go out in one system call."""


@dataclass(frozen=True, slots=True)
class Served:
    """The requests and bytes that a run was served."""

    request_count: int
    record_bytes: int
    elapsed_s: float


class Connection:
    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection(address, timeout=SOCKET_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        leave_unpaced(self._socket)
        self.send = self._socket.sendall
        self.receive_into = self._socket.recv_into

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def receive_exactly(self, view: memoryview) -> None:
        filled = 0
        while filled < len(view):
            count = self.receive_into(view[filled:])
            if count == 0:
                raise ConnectionError("the broker closed the connection: see its log")
            filled += count

    def receive_answer(self) -> bytes:
        """A short one, without its length."""
        length = bytearray(4)
        self.receive_exactly(memoryview(length))
        answer = bytearray(int.from_bytes(length, "big"))
        self.receive_exactly(memoryview(answer))
        return bytes(answer)

    def receive_produced(self, error_position: int) -> None:
        answer = self.receive_answer()
        if any(answer[error_position : error_position + 2]):
            raise RuntimeError(f"Produce was answered with {answer!r}")


def run_threads(work: Sequence[Callable[[], None]]) -> float:
    """Run all at the same time; the seconds that took. The first failure is raised here."""
    failures: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits for the threads
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(task,), daemon=True) for task in work]
    started_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed_s = time.perf_counter() - started_s
    if failures:
        raise failures[0]
    return elapsed_s


def produce(
    address: Address,
    topic: str,
    batch: bytes,
    *,
    record_bytes: int,
    batch_count: int,
    connections: int,
    in_flight: int,
    partitions: int,
) -> Served:
    """Send the batch `batch_count` times. Connections share all partitions; each keeps `in_flight` requests open."""
    frames = [ProduceFrame(topic, partition, batch).data for partition in range(partitions)]
    error_position = produce_error_position(topic)

    def work(at: int) -> None:
        count = batch_count // connections + (at < batch_count % connections)
        with Connection(address) as connection:
            for number in range(count):
                if number >= in_flight:
                    connection.receive_produced(error_position)
                connection.send(frames[(at + number) % partitions])
            for _ in range(min(in_flight, count)):
                connection.receive_produced(error_position)

    elapsed_s = run_threads([lambda at=at: work(at) for at in range(connections)])  # type: ignore[misc]
    return Served(batch_count, batch_count * record_bytes, elapsed_s)


def produce_small(
    address: Address, topic: str, batch: bytes, *, record_bytes: int, request_count: int, connections: int, blocks: int
) -> Served:
    """Small requests in blocks of `BLOCK_REQUESTS`, of which each connection keeps `blocks` open. A connection has a
    partition of its own."""
    blocks_each = max(1, request_count // connections // BLOCK_REQUESTS)

    def work(at: int) -> None:
        block = ProduceFrame(topic, at, batch).data * BLOCK_REQUESTS
        with Connection(address) as connection:
            answers = AnswerCounter(connection, topic)
            for number in range(blocks_each):
                answers.wait_for((number - blocks + 1) * BLOCK_REQUESTS)
                connection.send(block)
            answers.wait_for(blocks_each * BLOCK_REQUESTS)

    elapsed_s = run_threads([lambda at=at: work(at) for at in range(connections)])  # type: ignore[misc]
    count = blocks_each * BLOCK_REQUESTS * connections
    return Served(count, count * record_bytes, elapsed_s)


class AnswerCounter:
    """Counts Produce answers, which all have one length as long as none is an error, without a look at each."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._error_position = 4 + produce_error_position(topic)
        self._buffer = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self.count = 0

    def wait_for(self, count: int) -> None:
        """Until `count` answers have come since the start."""
        while self.count < count:
            received = self._connection.receive_into(self._view[self._filled :])
            if received == 0:
                raise ConnectionError("the broker closed the connection: see its log")
            self._filled += received
            self._take()

    def _take(self) -> None:
        if self._filled < 4:
            return
        answer_bytes = int.from_bytes(self._view[:4], "big") + 4
        whole = self._filled // answer_bytes
        end = whole * answer_bytes
        lengths_alike = self._buffer[3:end:answer_bytes] == bytes([answer_bytes - 4]) * whole
        errors = self._buffer[self._error_position + 1 : end : answer_bytes]
        if not lengths_alike or any(errors):
            raise RuntimeError(f"a Produce request was refused: {bytes(self._view[: min(end, 200)])!r}")
        self.count += whole
        rest = self._filled - end
        self._view[:rest] = bytes(self._view[end : self._filled])
        self._filled = rest


def produce_one_by_one(address: Address, topic: str, batch: bytes, *, request_count: int) -> list[float]:
    """To the first partition, each request sent when the last one is answered. Milliseconds of each."""
    frame = ProduceFrame(topic, 0, batch).data
    error_position = produce_error_position(topic)
    found: list[float] = []
    with Connection(address) as connection:
        for _ in range(request_count):
            started_s = time.perf_counter()
            connection.send(frame)
            connection.receive_produced(error_position)
            found.append((time.perf_counter() - started_s) * 1000)
    return found


def produce_idempotent_small(
    address: Address,
    topic: str,
    batch_for: Callable[[int, int], bytes],
    *,
    record_bytes: int,
    request_count: int,
    connections: int,
    in_flight: int,
) -> Served:
    """As `produce_small`, by idempotent producers: every request has the next sequence."""
    count_each = max(1, request_count // connections)

    def work(at: int) -> None:
        with Connection(address) as connection:
            connection.send(init_producer_id_frame())
            frame = ProduceFrame(topic, at, batch_for(*read_init_producer_id(connection.receive_answer())))
            answers = AnswerCounter(connection, topic)
            sent = 0
            while sent < count_each:
                block = bytearray()
                for _ in range(min(BLOCK_REQUESTS, count_each - sent)):
                    block += frame.data
                    frame.advance_sequence()
                    sent += 1
                connection.send(block)
                answers.wait_for(sent - in_flight)
            answers.wait_for(sent)

    elapsed_s = run_threads([lambda at=at: work(at) for at in range(connections)])  # type: ignore[misc]
    return Served(count_each * connections, count_each * connections * record_bytes, elapsed_s)


def consume(
    address: Address,
    topic: str,
    *,
    partitions: int,
    partition_bytes_max: int,
    batches_per_partition: int,
    batch_bytes: int,
    batch_records: int,
    record_bytes: int,
    rounds: int,
    connections: int,
    verify: bool = False,
) -> Served:
    """Every connection reads all partitions from their start to their end, `rounds` times."""
    end_offset = batches_per_partition * batch_records
    responses = [0] * connections

    def work(at: int) -> None:
        buffer = memoryview(bytearray(FETCH_BYTES_MAX + 1024 * 1024))
        frame = FetchFrame(topic, partitions, partition_bytes_max=partition_bytes_max, bytes_max=FETCH_BYTES_MAX)
        with Connection(address) as connection:
            for _ in range(rounds):
                offsets = dict.fromkeys(range(partitions), 0)
                while min(offsets.values()) < end_offset:
                    for partition, offset in offsets.items():
                        frame.set_offset(partition, offset)
                    connection.send(frame.data)
                    connection.receive_exactly(buffer[:4])
                    answer = buffer[4 : 4 + int.from_bytes(buffer[:4], "big")]
                    connection.receive_exactly(answer)
                    responses[at] += 1
                    for partition, records in frame.read_answer(answer).items():
                        if verify:
                            check_batches(records, offsets[partition])
                        batch_count, rest = divmod(len(records), batch_bytes)
                        if rest:
                            raise RuntimeError(f"{len(records)} bytes are not whole batches of {batch_bytes}")
                        offsets[partition] += batch_count * batch_records

    elapsed_s = run_threads([lambda at=at: work(at) for at in range(connections)])  # type: ignore[misc]
    batch_count = connections * rounds * partitions * batches_per_partition
    return Served(sum(responses), batch_count * record_bytes, elapsed_s)


def check_batches(records: memoryview, offset: int) -> None:
    """That these are whole batches with valid checksums, which go on at `offset`."""
    position = 0
    while position + HEADER_BYTES <= len(records):
        header = read_batch(records[position:])
        if read_header(records, position).base_offset != offset:
            raise RuntimeError(f"a batch at offset {header.base_offset} where {offset} was to come")
        offset += header.offset_count
        position += header.total_bytes
    if position != len(records):
        raise RuntimeError(f"{len(records) - position} bytes behind the last batch")
