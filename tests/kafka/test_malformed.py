"""Bytes that no client should send: each gets its defined answer, and everybody else is served on."""

import random
import socket
import struct
from collections.abc import Callable, Iterator

import pytest
from tests.kafka.clients import CLIENTS, Record
from tests.kafka.raw import API_VERSIONS, Peer, frame, header

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


def _produce(version: int, records: bytes) -> bytes:
    body = struct.pack(">hhi", -1, -1, 1_000)  # no transactional id, acks all, timeout
    topic = struct.pack(">ih", 1, 9) + b"malformed" + struct.pack(">iii", 1, 0, len(records)) + records
    return frame(header(PRODUCE, version) + body + topic)


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


@pytest.mark.parametrize(
    ("what", "records", "expected"),
    [
        ("no records", b"", {2, 87, 42}),
        ("not a batch", b"\x00" * 61, {2, 87, 42, 43, 76}),
        (
            "a batch of an older format",
            struct.pack(">qi", 0, 40) + b"\x00" * 4 + b"\x01" + b"\x00" * 60,
            {2, 43, 87, 42},
        ),
        ("a wrong checksum", struct.pack(">qiibI", 0, 49, 0, 2, 1) + b"\x00" * 40, {2, 87, 42}),
    ],
)
def test_damaged_batches_are_answered_with_an_error(
    what: str, records: bytes, expected: set[int], bootstrap: str, peer: Peer
) -> None:
    CLIENTS["confluent"].produce(bootstrap, "malformed", [Record(b"exists")])
    peer.send(_produce(7, records))
    answer = peer.read_frame()
    position = 4 + 4 + 2 + len(b"malformed") + 4 + 4
    (error_code,) = struct.unpack(">h", answer[position : position + 2])
    assert error_code in expected, what
    assert peer.is_alive()


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
