"""Bytes that no client should send: each gets its defined answer, and everybody else is served on."""

import random
import socket
import struct
from collections.abc import Callable, Iterator

import pytest
from fastcrc.crc32 import iscsi as crc32c
from kio.schema.errors import ErrorCode as E
from tests.cluster import Cluster
from tests.kafka.clients import CLIENTS, Record
from tests.kafka.raw import API_VERSIONS, Peer, frame, header

from braidlog.records.batch import HEADER_BYTES, read_header
from braidlog.records.record import Record as BatchRecord
from braidlog.records.record import encode_batch

METADATA, PRODUCE, FETCH, LIST_OFFSETS = 3, 0, 1, 2


@pytest.fixture
def peer(bootstrap: str) -> Iterator[Peer]:
    peer = Peer(bootstrap)
    yield peer
    peer.socket.close()


@pytest.fixture(autouse=True)
def bystander(bootstrap: str) -> Iterator[Peer]:
    """Another connection, which must not notice anything; and a new one is served too."""
    bystander = Peer(bootstrap)
    assert bystander.is_alive()
    yield bystander
    assert bystander.is_alive()
    bystander.socket.close()
    newcomer = Peer(bootstrap)
    assert newcomer.is_alive()
    newcomer.socket.close()


def _random_bytes() -> bytes:
    return frame(random.Random(5).randbytes(2_000))


def _huge_array(api_key: int, version: int) -> bytes:
    return frame(header(api_key, version) + struct.pack(">i", 2_000_000_000))


def _produce(version: int, records: bytes | None) -> bytes:
    body = struct.pack(">hhi", -1, -1, 1_000)  # no transactional id, acks all, timeout
    length = -1 if records is None else len(records)
    topic = struct.pack(">ih", 1, 9) + b"malformed" + struct.pack(">iii", 1, 0, length) + (records or b"")
    return frame(header(PRODUCE, version) + body + topic)


def _batch(value: bytes = b"value", **fields: int) -> bytes:
    """A batch of one record and no timestamps, well formed but for the fields that are given; its checksum is right."""
    record = encode_batch([BatchRecord(0, -1, None, value, ())])
    changed = read_header(memoryview(record))._replace(**fields)
    after_crc = struct.pack(">hiqqqhii", *changed[5:]) + record[HEADER_BYTES:]
    return struct.pack(">qiibI", *changed[:4], crc32c(after_crc)) + after_crc


CLOSED = {
    "a length of zero": frame(b""),
    "a negative length": struct.pack(">i", -5) + b"xxxxx",
    "the most negative length": struct.pack(">i", -(2**31)),
    "a length past the limit": struct.pack(">i", 2**31 - 1) + b"x" * 100,
    "a header cut short": frame(b"\x00\x12\x00"),
    "a header without correlation id": frame(struct.pack(">hh", METADATA, 1)),
    "random bytes": _random_bytes(),
    "an unknown api key": frame(header(999, 0)),
    "a negative api key": frame(header(-1, 0)),
    "a version that never was": frame(header(METADATA, 99) + struct.pack(">i", 0)),
    "a negative version": frame(header(METADATA, -3) + struct.pack(">i", 0)),
    "a client id longer than the frame": frame(struct.pack(">hhih", METADATA, 1, 7, 30_000) + b"abc"),
    "a client id of negative length": frame(struct.pack(">hhih", METADATA, 1, 7, -7) + struct.pack(">i", 0)),
    "a client id that is not UTF-8": frame(header(METADATA, 1, client_id=b"\xff\xfe\xfd") + struct.pack(">i", -1)),
    "metadata with a body cut short": frame(header(METADATA, 1) + struct.pack(">ih", 1, 200) + b"short"),
    "metadata with two billion topics": _huge_array(METADATA, 1),
    "metadata with a count of -9": frame(header(METADATA, 1) + struct.pack(">i", -9)),
    "produce with a body cut short": frame(header(PRODUCE, 7) + struct.pack(">hh", -1, -1)),
    "produce with two billion topics": frame(
        header(PRODUCE, 7) + struct.pack(">hhi", -1, -1, 1_000) + struct.pack(">i", 2_000_000_000)
    ),
    "produce whose records are longer than the frame": frame(
        header(PRODUCE, 7)
        + struct.pack(">hhi", -1, -1, 1_000)
        + struct.pack(">ih", 1, 9)
        + b"malformed"
        + struct.pack(">iii", 1, 0, 100_000)
        + b"few"
    ),
    "fetch with a body cut short": frame(header(FETCH, 11) + b"\x00\x00"),
    "fetch with two billion topics": frame(
        header(FETCH, 11) + struct.pack(">iiiibii", -1, 100, 1, 1000, 0, 0, -1) + struct.pack(">i", 2_000_000_000)
    ),
    "list offsets with two billion topics": frame(
        header(LIST_OFFSETS, 2) + struct.pack(">ib", -1, 0) + struct.pack(">i", 2_000_000_000)
    ),
    "join group with nothing in it": frame(header(11, 5)),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
}


@pytest.mark.parametrize("what", sorted(CLOSED))
def test_closes_the_connection(what: str, peer: Peer) -> None:
    peer.send(CLOSED[what])
    assert peer.is_closed()


def test_the_unknown_version_of_api_versions_is_answered_in_version_0(peer: Peer) -> None:
    peer.send(frame(header(API_VERSIONS, 99) + b"\x00" + b"\x06tests" + b"\x061.0.0" + b"\x00"))
    answer = peer.read_frame()
    correlation_id, error_code, count = struct.unpack(">ihi", answer[:10])
    assert (correlation_id, error_code) == (7, 35)
    assert len(answer) == 10 + 6 * count  # version 0: an array of (key, lowest, highest), and nothing after it
    assert peer.is_alive()


WELL_FORMED = _batch()
TRANSACTIONAL, CONTROL, LOG_APPEND_TIME, DELETE_HORIZON, ZSTD = 0x10, 0x20, 0x08, 0x40, 4
LONG_AFTER_MS = 1 << 50

REFUSED = {
    "no records": (b"", E.invalid_record),
    "null for records": (None, E.invalid_record),
    "not a batch": (b"\x00" * 61, E.invalid_record),
    "a batch of an older format": (
        struct.pack(">qi", 0, 40) + b"\x00" * 4 + b"\x01" + b"\x00" * 60,
        E.invalid_record,
    ),
    "a short batch of an older format": (struct.pack(">qiib", 0, 14, 0, 1) + b"\x00" * 9, E.invalid_record),
    "a format that is yet to come": (_batch(magic=3), E.invalid_record),
    "less than a header": (WELL_FORMED[:40], E.corrupt_message),
    "a wrong checksum": (WELL_FORMED[:-1] + b"!", E.corrupt_message),
    "a length past the end": (_batch(batch_length=1_000), E.corrupt_message),
    "a length of less than the header": (_batch(batch_length=48), E.corrupt_message),
    "a negative length": (_batch(batch_length=-13), E.corrupt_message),
    "bytes behind the batch": (WELL_FORMED + b"tail", E.corrupt_message),
    "two batches": (WELL_FORMED * 2, E.invalid_record),
    "a larger batch than the topic takes": (_batch(b"x" * 1_100_000), E.message_too_large),
    "an unknown codec": (_batch(attributes=5), E.unsupported_compression_type),
    "a base offset": (_batch(base_offset=7), E.invalid_record),
    "a batch of no records": (_batch(record_count=0, last_offset_delta=-1), E.invalid_record),
    "a count that is not that of the offsets": (_batch(last_offset_delta=4), E.invalid_record),
    "more records than bytes": (_batch(record_count=50, last_offset_delta=49), E.invalid_record),
    "a control batch": (_batch(attributes=CONTROL), E.invalid_record),
    "a reserved attribute": (_batch(attributes=DELETE_HORIZON), E.invalid_record),
    "a timestamp of the log's": (_batch(attributes=LOG_APPEND_TIME), E.invalid_timestamp),
    "a timestamp that is long after now": (_batch(timestamp_ms_base=LONG_AFTER_MS), E.invalid_timestamp),
    "a negative timestamp": (_batch(timestamp_ms_base=-2), E.invalid_timestamp),
    "a producer id that cannot be": (_batch(producer_id=-2), E.invalid_record),
    "a producer without a sequence": (_batch(producer_id=1, producer_epoch=0), E.invalid_record),
    "a producer without an epoch": (_batch(producer_id=1, base_sequence=0), E.invalid_record),
    "a transaction without a producer": (_batch(attributes=TRANSACTIONAL), E.invalid_record),
    "a transaction without its id": (
        _batch(attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0),
        E.transactional_id_authorization_failed,
    ),
}
"""Record batches, each with the one thing that is wrong with it, and what it is answered."""


@pytest.fixture(scope="module")
def topic(shared_cluster: Cluster) -> None:
    """The topic that all of them are for, with one partition."""
    CLIENTS["confluent"].produce(shared_cluster.processes["up"].address, "malformed", [Record(b"exists")])


def answer_to(peer: Peer, records: bytes | None, version: int = 7) -> tuple[int, int]:
    """The error code and the base offset that a produce request with these records is answered."""
    peer.send(_produce(version, records))
    answer = peer.read_frame()
    position = 4 + 4 + 2 + len(b"malformed") + 4 + 4
    error_code, base_offset = struct.unpack_from(">hq", answer, position)
    return error_code, base_offset


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("what", sorted(REFUSED))
def test_each_malformed_batch_has_its_error_and_no_offset(what: str, peer: Peer) -> None:
    records, expected = REFUSED[what]
    assert answer_to(peer, records) == (expected, -1)
    assert peer.is_alive()


@pytest.mark.usefixtures("topic")
def test_zstd_is_refused_in_versions_that_did_not_know_it(peer: Peer) -> None:
    assert answer_to(peer, _batch(attributes=ZSTD), version=6) == (E.unsupported_compression_type, -1)


@pytest.mark.usefixtures("topic")
def test_what_is_refused_leaves_nothing_in_the_log(peer: Peer) -> None:
    error_code, before = answer_to(peer, WELL_FORMED)
    assert error_code == E.none
    for records, expected in REFUSED.values():
        assert answer_to(peer, records) == (expected, -1)
    assert answer_to(peer, WELL_FORMED) == (E.none, before + 1)


def test_a_frame_that_never_ends_holds_up_nobody(peer: Peer, bystander: Peer) -> None:
    peer.send(struct.pack(">i", 50_000_000) + b"x" * 1_000)
    assert bystander.is_alive()


def test_a_request_in_single_bytes(peer: Peer) -> None:
    for byte in frame(header(API_VERSIONS, 0)):
        peer.send(bytes([byte]))
    assert peer.read_frame()[:6] == struct.pack(">ih", 7, 0)


def test_answers_keep_the_order_of_requests(peer: Peer) -> None:
    """A thousand in one write: fast and slow ones mixed, answered in the order they came."""
    requests = [
        header(API_VERSIONS, 0, number) if number % 3 else header(METADATA, 1, number) + struct.pack(">i", 0)
        for number in range(1_000)
    ]
    peer.send(b"".join(frame(request) for request in requests))
    assert [struct.unpack(">i", peer.read_frame()[:4])[0] for _ in requests] == list(range(1_000))


def test_a_client_that_hangs_up_in_the_middle(bootstrap: str) -> None:
    for cut in range(1, 40, 3):
        peer = Peer(bootstrap)
        peer.send(_produce(7, b"x" * 100)[:cut])
        peer.socket.close()


def test_mutated_requests_never_stop_the_agent(bootstrap: str, bystander: Peer) -> None:
    """Real requests with a few bytes changed: anything may be answered, but somebody else is still served."""
    entropy = random.Random(11)
    valid: list[Callable[[], bytes]] = [
        lambda: header(METADATA, 1) + struct.pack(">i", -1),
        lambda: header(FETCH, 4) + struct.pack(">iiiibi", -1, 0, 1, 1_000, 0, 0),
        lambda: _produce(7, b"x" * 80)[4:],
        lambda: header(LIST_OFFSETS, 2) + struct.pack(">ibi", -1, 0, 0),
        lambda: header(10, 1) + struct.pack(">h", 5) + b"group" + b"\x00",
        lambda: header(API_VERSIONS, 3) + b"\x00\x06tests\x061.0.0\x00",
    ]
    for _ in range(300):
        data = bytearray(entropy.choice(valid)())
        for _ in range(entropy.randrange(1, 6)):
            data[entropy.randrange(len(data))] = entropy.randrange(256)
        peer = Peer(bootstrap)
        peer.send(frame(bytes(data)))
        peer.socket.shutdown(socket.SHUT_WR)
        peer.socket.close()
    assert bystander.is_alive()
