"""Requests that are recognised by their opening say what taking them apart would."""

from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.wire.errors import MalformedRequest
from braidlog.wire.header import is_flexible, read_request_header
from braidlog.wire.primitives import count_of, nullable_string, pack_i16, pack_i32, string, uvarint
from braidlog.wire.produce import KEY, VERSIONS, read_produce_request
from braidlog.wire.produce_opening import ProduceOpening, SingleProduce, opening_of

TOPIC_ID = bytes(range(16))

versions = st.sampled_from(VERSIONS)
lengths = st.sampled_from([0, 1, 5, 126, 127, 128, 16_382, 16_383, 16_384, 20_000])


def frame_of(
    version: int,
    correlation_id: int,
    partitions: list[tuple[int, bytes]],
    *,
    name: str = "orders",
    transactional_id: str | None = None,
) -> memoryview:
    flexible = is_flexible(KEY, version)
    end = b"\x00" if flexible else b""
    parts = [pack_i16(KEY), pack_i16(version), pack_i32(correlation_id), pack_i16(3), b"abc", end]
    parts += [nullable_string(transactional_id, flexible), pack_i16(-1), pack_i32(30_000), count_of(1, flexible)]
    parts += [TOPIC_ID if version >= 13 else string(name, flexible), count_of(len(partitions), flexible)]
    for index, records in partitions:
        length = uvarint(len(records) + 1) if flexible else pack_i32(len(records))
        parts += [pack_i32(index), length, records, end]
    return memoryview(b"".join([*parts, end, end]))


def opening_in(frame: memoryview) -> ProduceOpening | None:
    header = read_request_header(frame)
    return opening_of(frame, header, read_produce_request(header.api_version, frame[header.body_position :]))


def taken_apart(frame: memoryview) -> tuple[int, str, bytes, SingleProduce]:
    header = read_request_header(frame)
    request = read_produce_request(header.api_version, frame[header.body_position :])
    ((name, topic_id, ((index, records),)),) = request.topics
    assert records is not None
    return header.api_version, name, topic_id, (header.correlation_id, index, records)


@given(versions, lengths, lengths, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
@settings(max_examples=200)
def test_later_requests_are_recognised(version: int, first: int, second: int, correlation_id: int, index: int) -> None:
    opening = opening_in(frame_of(version, 7, [(3, bytes(first))]))
    assert opening is not None
    frame = frame_of(version, correlation_id, [(index, b"\x01" * second)])
    assert opening.read(frame) == (correlation_id, index, b"\x01" * second)


def test_no_records_at_all_are_not_taken_for_empty_ones() -> None:
    frame = frame_of(9, 7, [(3, b"")])
    opening = opening_in(frame)
    assert opening is not None
    nothing = bytearray(frame)
    nothing[-4:] = b"\x80\x00\x00\x00"  # a length of 0 in two bytes, and then what looks like the end
    assert opening.read(memoryview(nothing)) is None


@given(versions, lengths, st.data())
@settings(max_examples=300)
def test_what_is_recognised_is_what_taking_it_apart_gives(version: int, length: int, data: st.DataObject) -> None:
    frame = frame_of(version, 7, [(3, bytes(length))])
    opening = opening_in(frame)
    assert opening is not None
    damaged = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 3))):
        # Most fields are near the start; some are near the end.
        position = data.draw(st.integers(-min(8, len(damaged)), min(70, len(damaged) - 1)))
        damaged[position] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    cut = memoryview(damaged)[: len(damaged) - data.draw(st.sampled_from([0, 0, 0, 1, 2, 9]))]
    try:
        found = opening.read(cut)
    except MalformedRequest:
        return
    if found is not None:
        assert taken_apart(cut) == (opening.version, opening.name, opening.topic_id, found)


def test_other_kinds_of_requests_have_no_opening() -> None:
    for version in VERSIONS:
        assert opening_in(frame_of(version, 7, [(0, b"a"), (1, b"b")])) is None
        assert opening_in(frame_of(version, 7, [])) is None
        assert opening_in(frame_of(version, 7, [(0, b"a")], transactional_id="t")) is None


def test_a_length_of_more_bytes_than_it_needs_is_not_misread() -> None:
    frame = frame_of(12, 7, [(0, b"abc")])
    wide = memoryview(bytes(frame).replace(b"\x07orders", b"\x87\x00orders"))
    assert taken_apart(wide) == taken_apart(frame)
    assert opening_in(wide) is None


def test_another_topic_or_version_is_not_taken_for_the_same() -> None:
    opening = opening_in(frame_of(12, 7, [(0, b"abc")]))
    assert opening is not None
    assert opening.read(frame_of(12, 7, [(0, b"abc")], name="others")) is None
    assert opening.read(frame_of(11, 7, [(0, b"abc")])) is None
    assert opening.read(frame_of(12, 7, [(0, b"abc")])) == (7, 0, b"abc")
