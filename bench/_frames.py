"""Kafka requests as ready-made frames: built once, sent many times.

A broker answers in the order of the requests, so a correlation id that repeats is harmless, and nothing of a frame has
to be touched between two sends but the sequence of an idempotent producer.
"""

import time
from struct import Struct

from fastcrc.crc32 import iscsi as crc32c

from braidlog.records.batch import CRC_START, HEADER_BYTES, BatchProducer
from braidlog.records.record import Record, encode_batch
from braidlog.wire.primitives import count_of, pack_i16, pack_i32, pack_i64, string, uvarint

CLIENT_ID = b"bench"
RECORD_VALUE_BYTES = 1024
BATCH_RECORDS = 1000
"""With 1 KiB each, just below Kafka's default `max.message.bytes`."""

PRODUCE_VERSION = 10
FETCH_VERSION = 12
INIT_PRODUCER_ID_VERSION = 4

_CRC_POSITION = 17
_SEQUENCE_POSITION = 53
_I32 = Struct(">i")
_U32 = Struct(">I")
_SEQUENCE_END = 1 << 31


def batch_of(record_count: int, *, producer_id: int = -1, producer_epoch: int = -1) -> bytes:
    """Uncompressed records of 1 KiB, stamped now."""
    now_ms = time.time_ns() // 1_000_000
    block = bytes(range(256)) * (RECORD_VALUE_BYTES // 256)
    records = [
        Record(index, now_ms, None, index.to_bytes(8, "big") + block[: RECORD_VALUE_BYTES - 8])
        for index in range(record_count)
    ]
    base_sequence = 0 if producer_id >= 0 else -1
    return encode_batch(records, producer=BatchProducer(producer_id, producer_epoch, base_sequence))


def _frame(api_key: int, api_version: int, body: bytes) -> bytes:
    start = pack_i16(api_key) + pack_i16(api_version) + pack_i32(0) + pack_i16(len(CLIENT_ID)) + CLIENT_ID + b"\x00"
    return pack_i32(len(start) + len(body)) + start + body


class ProduceFrame:
    """One batch to one partition, acks=all."""

    def __init__(self, topic: str, partition: int, batch: bytes) -> None:
        head = b"\x00" + pack_i16(-1) + pack_i32(30_000) + count_of(1, True) + string(topic, True) + count_of(1, True)
        body = b"".join((head, pack_i32(partition), uvarint(len(batch) + 1), batch, b"\x00\x00\x00"))
        self.data = bytearray(_frame(0, PRODUCE_VERSION, body))
        self._batch_start = len(self.data) - 3 - len(batch)
        self._batch_end = len(self.data) - 3
        self._record_count = _I32.unpack_from(batch, HEADER_BYTES - 4)[0]
        self._view = memoryview(self.data)
        self._sequence = 0

    def advance_sequence(self) -> None:
        """Give the batch the sequence behind the last one. It is inside the CRC, which is computed anew."""
        self._sequence = (self._sequence + self._record_count) % _SEQUENCE_END
        _I32.pack_into(self.data, self._batch_start + _SEQUENCE_POSITION, self._sequence)
        checksum = crc32c(self._view[self._batch_start + CRC_START : self._batch_end])
        _U32.pack_into(self.data, self._batch_start + _CRC_POSITION, checksum)


def produce_error_position(topic: str) -> int:
    """Where the error code stands in the answer for one partition, which is taken without its length."""
    return 5 + 1 + len(string(topic, True)) + 1 + 4


def init_producer_id_frame() -> bytes:
    """Asks for a producer id outside any transaction."""
    return _frame(22, INIT_PRODUCER_ID_VERSION, b"\x00" + pack_i32(60_000) + pack_i64(-1) + pack_i16(-1) + b"\x00")


def read_init_producer_id(response: bytes) -> tuple[int, int]:
    """Producer id and epoch."""
    error, producer_id, epoch = Struct(">hqh").unpack_from(response, 5 + 4)
    if error:
        raise RuntimeError(f"InitProducerId was answered with error {error}")
    return producer_id, epoch


class FetchFrame:
    """All of a topic's first partitions in one request, each from its own offset."""

    def __init__(self, topic: str, partition_count: int, *, partition_bytes_max: int, bytes_max: int) -> None:
        start = Struct(">iiiibii").pack(-1, 500, 1, bytes_max, 0, 0, -1)
        parts = [start, count_of(1, True), string(topic, True), count_of(partition_count, True)]
        self._partition = Struct(">iiqiqiB")
        parts += [
            self._partition.pack(index, -1, 0, -1, -1, partition_bytes_max, 0) for index in range(partition_count)
        ]
        tail = b"\x00" + count_of(0, True) + string("", True) + b"\x00"
        parts.append(tail)
        self.data = bytearray(_frame(1, FETCH_VERSION, b"".join(parts)))
        self._offsets_position = len(self.data) - len(tail) - partition_count * self._partition.size + 8
        # Where the first partition begins in a response's body: behind throttle, error, session and the topic.
        self._answers_position = 5 + 4 + 2 + 4 + 1 + len(string(topic, True)) + len(count_of(partition_count, True))
        self._partition_count = partition_count

    def set_offset(self, partition: int, offset: int) -> None:
        position = self._offsets_position + partition * self._partition.size
        Struct(">q").pack_into(self.data, position, offset)

    def read_answer(self, response: memoryview) -> dict[int, memoryview]:
        """The records of every partition. `response` begins behind the length."""
        error = int.from_bytes(response[9:11], "big")
        if error:
            raise RuntimeError(f"Fetch was answered with error {error}")
        found: dict[int, memoryview] = {}
        position = self._answers_position
        for _ in range(self._partition_count):
            index, error, _, _, _ = Struct(">ihqqq").unpack_from(response, position)
            if error:
                raise RuntimeError(f"Fetch of partition {index} was answered with error {error}")
            aborted_count = response[position + 30]
            if aborted_count > 1:
                raise RuntimeError("aborted transactions where there was no transaction")
            length, position = _read_uvarint(response, position + 35)
            end = position + length - 1
            found[index] = response[position:end]
            if response[end]:
                raise RuntimeError("tagged fields that this reader does not know")
            position = end + 1
        return found


def _read_uvarint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
