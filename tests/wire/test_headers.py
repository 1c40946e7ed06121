"""Request headers, response headers and frames."""

import io
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_writer
from tests.wire.kio_entities import i32s, nullable_texts

from braidlog.wire import messages
from braidlog.wire.errors import MalformedRequest
from braidlog.wire.fetch import read_fetch_request
from braidlog.wire.header import (
    RequestHeader,
    frame_start,
    has_flexible_response_header,
    is_flexible,
    read_request_header,
    response_header,
)
from braidlog.wire.metadata import read_metadata_request
from braidlog.wire.produce import read_produce_request

EVERY_VERSION = [
    (key, version) for key, name in sorted(api_key_map.items()) for version in sorted(schema_name_map[name])
]


def test_the_table_of_flexible_versions_is_kafkas() -> None:  # slow for importing all schemas, once
    for key, version in EVERY_VERSION:
        assert is_flexible(key, version) is load_request_schema(key, version).__flexible__, (key, version)
        header_version = load_response_schema(key, version).__header_schema__.__version__
        assert has_flexible_response_header(key, version) is (header_version == 1), (key, version)


@pytest.mark.parametrize(("api_key", "version"), [(0, 8), (0, 9), (18, 0), (18, 3), (18, 77), (3, 13), (17, 1)])
@settings(max_examples=20, deadline=None)
@given(correlation_id=i32s, client_id=nullable_texts)
def test_headers_read_as_kio_wrote_them(api_key: int, version: int, correlation_id: int, client_id: str | None) -> None:
    header_type = HeaderV2 if is_flexible(api_key, version) else HeaderV1
    buffer = io.BytesIO()
    entity_writer(header_type)(
        buffer,
        header_type(
            request_api_key=api_key,
            request_api_version=version,
            correlation_id=correlation_id,
            client_id=client_id,
        ),
    )
    frame = buffer.getvalue()
    header = read_request_header(memoryview(frame + b"body"))
    assert header == RequestHeader(api_key, version, correlation_id, client_id or "", len(frame))


def test_unknown_tags_in_a_header_are_passed_over() -> None:
    frame = struct.pack(">hhih", 3, 12, 7, -1) + b"\x01\x05\x03abc" + b"body"
    assert read_request_header(memoryview(frame)).body_position == len(frame) - 4


def test_response_headers_and_frames() -> None:
    assert response_header(258, False) == b"\x00\x00\x01\x02"
    assert response_header(258, True) == b"\x00\x00\x01\x02\x00"
    assert frame_start(258, True, 5) == b"\x00\x00\x00\x0a\x00\x00\x01\x02\x00"
    assert frame_start(258, False, 5) == b"\x00\x00\x00\x09\x00\x00\x01\x02"


FIXED = struct.Struct(">hhih")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"", "ends too early"),
        (b"\x00\x00\x00\x09", "ends too early"),
        (FIXED.pack(0, 3, 1, 5)[:9], "ends too early"),
        (FIXED.pack(0, 3, 1, 5) + b"abc", "ends too early"),
        (FIXED.pack(0, 3, 1, -2), "a client id of -2"),
        (FIXED.pack(0, 3, 1, 2) + b"\xff\xfe", "not UTF-8"),
        (FIXED.pack(0, 9, 1, -1), "ends too early"),
        (FIXED.pack(0, 9, 1, -1) + b"\x01", "ends too early"),
        (FIXED.pack(0, 9, 1, -1) + b"\x01\x00\x05abc", "ends too early"),
        (FIXED.pack(0, 9, 1, -1) + b"\x01\xff\xff\xff\xff\xff\xff", "more than five bytes"),
        (FIXED.pack(0, 9, 1, -1) + b"\xff\xff\xff\xff\x0f", "out of range"),
    ],
)
def test_malformed_headers(frame: bytes, message: str) -> None:
    with pytest.raises(MalformedRequest, match=message):
        read_request_header(memoryview(frame))


READERS = {0: read_produce_request, 1: read_fetch_request, 3: read_metadata_request}


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([(0, 3), (0, 8), (0, 9), (0, 13), (1, 4), (1, 11), (1, 12), (1, 18), (3, 0), (3, 8), (3, 13)]),
    st.lists(st.binary(max_size=20) | st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x00\x00\x00\x01"]), max_size=20),
)
def test_random_bodies_raise_nothing_but_malformed_request(message: tuple[int, int], pieces: list[bytes]) -> None:
    body = memoryview(b"".join(pieces))
    for attempt in (
        lambda: READERS[message[0]](message[1], body),
        lambda: messages.read_request(*message, body),
        lambda: read_request_header(body),
    ):
        try:
            attempt()
        except MalformedRequest:
            pass


PRODUCE_V9 = b"\x02x\x00\x01\x00\x00\x75\x30\x02\x02t\x02\x00\x00\x00\x07\x04rec\x00\x01\x05\x01z\x00"
PRODUCE_V7 = b"\xff\xff\x00\x01\x00\x00\x75\x30\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01" + bytes(4) + b"\0\0\0\3rec"


@pytest.mark.parametrize(("version", "body"), [(9, PRODUCE_V9), (7, PRODUCE_V7)])
def test_every_truncation_is_malformed_and_every_flipped_bit_is_survived(version: int, body: bytes) -> None:
    read_produce_request(version, memoryview(body))
    for end in range(len(body)):
        with pytest.raises(MalformedRequest):
            read_produce_request(version, memoryview(body)[:end])
    for bit in range(8 * len(body)):
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            request = read_produce_request(version, memoryview(flipped))
        except MalformedRequest:
            continue
        assert sum(len(p.records or b"") for t in request.topics for p in t.partitions) <= len(body)


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_no_claimed_length_harms_the_reader_of_any_message(key: int, version: int) -> None:
    for body in (
        b"",
        b"\x7f" * 40,
        b"\xff" * 40,
        b"\xff\xff\xff\xff\x07" * 8,
        b"\x00\x01" * 20,
        b"\x01\x7f\xff\xff\xff" * 8,
    ):
        for start in range(5):
            try:
                messages.read_request(key, version, body[start:])
            except MalformedRequest:
                pass
