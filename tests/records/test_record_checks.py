"""What records must be like, in plain Python and compiled, and what becomes of a batch before its log takes it."""

from collections.abc import Callable
from struct import pack_into

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from braidlog.records import record_checks
from braidlog.records.batch import BatchHeader, read_header, validate_batches
from braidlog.records.codec import Codec, compress
from braidlog.records.errors import BadRecords, InvalidBatch, RecordsTooLarge
from braidlog.records.preparation import LogRules, prepare_batch
from braidlog.records.record import Record, decode_batch, encode_batch
from braidlog.records.record_checks import Checked, Times, check_records, is_plain_record

NOW_MS = 1_700_000_000_000
BYTES_MAX = 1_000_000
RULES = LogRules(BYTES_MAX)
ANY_TIMES = Times()

Check = Callable[[bytes, int, Times], Checked]


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def record(
    delta: int = 0, key: bytes | None = b"k", value: bytes = b"v", rest: bytes = b"\0", *, delta_ms: int = 0
) -> bytes:
    body = b"\0" + varint(delta_ms) + varint(delta)
    body += varint(-1) if key is None else varint(len(key)) + key
    return sized(body + varint(len(value)) + value + rest)


def sized(body: bytes) -> bytes:
    return varint(len(body)) + body


def header_of(count: int) -> BatchHeader:
    return BatchHeader(0, 0, 0, 2, 0, 0, count - 1, NOW_MS, NOW_MS, -1, -1, -1, count)


@pytest.fixture(params=["plain", "compiled"])
def check(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.setattr(record_checks._Loaded, "compiled", None)
    if request.param == "compiled":
        pytest.importorskip("numba")
        monkeypatch.setattr(record_checks, "COMPILED_FROM", 1)
        assert record_checks.load_compiled()
    return lambda payload, count, times: check_records(memoryview(payload), header_of(count), times)


BAD = {
    "garbage": (b"\xde\xad\xbe\xef" * 20, 1),
    "zeros": (bytes(60), 3),
    "nothing": (b"", 1),
    "more than a few that are claimed": (record(0), 1_000_000),
    "one that is missing": (record(0) + record(1), 3),
    "one that nobody claimed": (record(0) + record(1), 1),
    "bytes behind the last": (record(0) + b"\0\0", 1),
    "a record that is too long": (varint(500) + record(0)[1:], 1),
    "a record that is too short": (varint(7) + record(0)[1:], 1),
    "a record of less than nothing": (varint(-3) + record(0)[1:], 1),
    "one offset twice": (record(0) + record(0), 2),
    "offsets from 1": (record(1) + record(2), 2),
    "offsets that go back": (record(1) + record(0), 2),
    "a gap in the offsets": (record(0) + record(5), 2),
    "an offset below zero": (record(-1), 1),
    "a key that is longer than its record": (sized(b"\0\0\0" + varint(100) + b"kkkkkkk"), 1),
    "a value that is longer than its record": (sized(b"\0\0\0" + varint(1) + b"k" + varint(90) + b"v" * 7), 1),
    "no number of headers": (sized(b"\0\0\0" + varint(1) + b"k" + varint(4) + b"vvvv"), 1),
    "less than no headers": (record(rest=varint(-1)), 1),
    "too many headers": (record(rest=varint(100)), 1),
    "a header without a name": (record(rest=varint(1) + varint(-1) + varint(1) + b"x"), 1),
    "a header that is cut off": (record(rest=varint(1) + varint(4) + b"x"), 1),
    "a header's value that is cut off": (record(rest=varint(1) + varint(1) + b"x" + varint(9) + b"y"), 1),
    "bytes behind the headers": (record(rest=b"\0zz"), 1),
    "a number that does not end": (b"\xff" * 11 + record(0), 1),
    "a time that no number holds": (record(delta_ms=2**63 - 1), 1),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_records_are_refused(check: Check, what: str) -> None:
    payload, count = BAD[what]
    with pytest.raises(InvalidBatch) as caught:
        check(payload, count, Times())
    assert caught.value.error_code is ErrorCode.invalid_record


@pytest.mark.parametrize(
    "payload",
    [
        record(),
        record(key=None, value=b""),
        record(key=b"k" * 100, value=b"v" * 70_000),
        record(delta_ms=-5_000_000_000),
        record(rest=varint(2) + varint(1) + b"n" + varint(-1) + varint(0) + varint(200) + b"h" * 200),
        record(rest=varint(1) + varint(2) + b"\xff\xfe" + varint(1) + b"x"),
        sized(b"\x05\0\0" + varint(-2) + varint(-7) + b"\0"),
        sized(b"\0" + b"\x80\x80\x00" + b"\x80\x00" + varint(1) + b"k" + varint(1) + b"v" + b"\0"),
    ],
)
def test_what_kafka_takes_is_taken(check: Check, payload: bytes) -> None:
    assert check(payload, 1, Times()).misdated_count == 0


def test_many_records(check: Check) -> None:
    count = 20_000
    payload = b"".join(record(at, None if at % 2 else b"k", delta_ms=at % 300) for at in range(count))
    checked = check(payload, count, Times(NOW_MS, NOW_MS + 100))
    assert checked.timestamp_ms_max == NOW_MS + 299
    assert checked.keyless_count == count // 2
    assert list(checked.keyless) == list(range(1, count, 2))[: record_checks.LISTED_MAX]
    late = [at for at in range(count) if at % 300 > 100]
    assert (checked.misdated_count, list(checked.misdated)) == (len(late), late[: record_checks.LISTED_MAX])


def test_bounds_may_be_past_all_times(check: Check) -> None:
    payload = b"".join(record(at) for at in range(10))
    assert check(payload, 10, Times(-(2**64), 2**64)).misdated_count == 0


pieces = st.binary(max_size=12) | st.sampled_from([record(at, key) for at in range(4) for key in (b"k", None)])


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, min_size=1, max_size=5), st.integers(1, 6))
def test_plain_and_compiled_agree_on_any_bytes(parts: list[bytes], count: int) -> None:
    pytest.importorskip("numba")
    payload, header, times = memoryview(b"".join(parts)), header_of(count), Times(NOW_MS - 5, NOW_MS + 5)
    record_checks.load_compiled()
    assert record_checks._Loaded.compiled is not None
    outcomes: list[object] = []
    for attempt in (
        lambda: record_checks._check_plain(payload, header, times),
        lambda: record_checks._check_compiled(record_checks._Loaded.compiled, payload, header, times),
    ):
        try:
            found = attempt()
            outcomes.append((found.timestamp_ms_max, found.keyless_count, list(found.keyless), list(found.misdated)))
        except InvalidBatch as error:
            outcomes.append(error.error_code)
    assert outcomes[0] == outcomes[1]


singles = st.builds(
    record,
    st.sampled_from([0, 0, 0, 1]),
    st.none() | st.binary(max_size=70),
    st.binary(max_size=70) | st.integers(0, 20_000).map(bytes),
    st.sampled_from([b"\0", b"\0", b"\1", b"\2\2x\0", b""]),
    delta_ms=st.sampled_from([0, 0, 1, -1, 300]),
)


@settings(max_examples=300, deadline=None)
@given(singles | st.binary(max_size=40), st.integers(-1, 1), st.integers(-1, 1))
def test_what_is_taken_at_a_glance_would_be_taken_after_a_close_look(payload: bytes, cut: int, late_ms: int) -> None:
    batch = batch_of(payload[: len(payload) + min(cut, 0)] + bytes(max(cut, 0)), 1, max_ms=NOW_MS + late_ms)
    times = Times(NOW_MS, NOW_MS)
    for needs_keys in (True, False):
        if is_plain_record(batch, read_header(batch), times, needs_key=needs_keys):
            assert prepare(batch, RULES._replace(needs_keys=needs_keys), times)[0] is batch


@pytest.mark.parametrize("value_bytes", [0, 1, 63, 64, 1_000, 8_000])
def test_small_records_are_taken_at_a_glance(value_bytes: int) -> None:
    for key in (b"key", None):
        batch = batch_of(record(0, key, bytes(value_bytes)), 1)
        assert is_plain_record(batch, read_header(batch), Times(), needs_key=False)
        assert is_plain_record(batch, read_header(batch), Times(), needs_key=True) == (key is not None)


def batch_of(payload: bytes, count: int, codec: Codec = Codec.NONE, max_ms: int = NOW_MS) -> memoryview:
    """A batch with this payload as its records and a right CRC."""
    batch = bytearray(encode_batch([Record(0, NOW_MS, None, None)]))
    batch[61:] = payload
    pack_into(">i", batch, 8, len(batch) - 12)
    pack_into(">hi", batch, 21, int(codec), count - 1)
    pack_into(">q", batch, 35, max_ms)
    pack_into(">i", batch, 57, count)
    pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return memoryview(batch)


def prepare(
    batch: memoryview, rules: LogRules = RULES, times: Times = ANY_TIMES, bytes_max: int = BYTES_MAX
) -> tuple[memoryview, BatchHeader]:
    header = validate_batches(batch, batch_bytes_max=rules.batch_bytes_max)[0]
    return prepare_batch(batch, header, rules, times, expanded_bytes_max=bytes_max)


compressing = pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])


@compressing
def test_bad_records_are_found_in_compressed_batches(codec: Codec) -> None:
    good = record(0) + record(1)
    for payload, count in ((compress(codec, good), 3), (compress(codec, good), 1), (compress(codec, b"\xde" * 90), 1)):
        with pytest.raises(InvalidBatch) as caught:
            prepare(batch_of(payload, count, codec))
        assert caught.value.error_code is ErrorCode.invalid_record
    batch = batch_of(compress(codec, good), 2, codec)
    assert prepare(batch) == (batch, read_header(batch))


@compressing
@pytest.mark.parametrize("payload", [b"", record(0) + record(1), bytes(range(256))])
def test_what_is_not_compressed_as_it_says_is_refused(codec: Codec, payload: bytes) -> None:
    with pytest.raises(InvalidBatch) as caught:
        prepare(batch_of(payload, 2, codec))
    assert caught.value.error_code is ErrorCode.invalid_record


@compressing
def test_a_batch_that_expands_too_far_is_given_up_at_the_limit(codec: Codec) -> None:
    batch = batch_of(compress(codec, record(0, value=bytes(3_000_000))), 1, codec)
    with pytest.raises(RecordsTooLarge, match="decompress to more than 2000000 bytes") as caught:
        prepare(batch, bytes_max=2_000_000)
    assert caught.value.error_code is ErrorCode.message_too_large
    assert prepare(batch, bytes_max=4_000_000)[0] is batch


def test_every_record_without_a_key_is_named() -> None:
    payload = b"".join(record(at, key) for at, key in enumerate([None, b"k", None, b"", None]))
    with pytest.raises(BadRecords, match="3 of 5 have none") as caught:
        prepare(batch_of(payload, 5), RULES._replace(needs_keys=True))
    assert (caught.value.error_code, list(caught.value.places)) == (ErrorCode.invalid_record, [0, 2, 4])
    assert prepare(batch_of(payload, 5))


def test_every_record_whose_time_is_out_of_bounds_is_named() -> None:
    payload = b"".join(record(at, delta_ms=delta_ms) for at, delta_ms in enumerate([0, 70, -NOW_MS - 1, -70, 5]))
    with pytest.raises(BadRecords) as caught:
        prepare(batch_of(payload, 5), times=Times(NOW_MS - 50, NOW_MS + 50))
    assert (caught.value.error_code, list(caught.value.places)) == (ErrorCode.invalid_timestamp, [1, 3])


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("told_ms", [-1, NOW_MS - 500, NOW_MS + 7, NOW_MS + 500])
def test_the_highest_time_is_that_of_the_records(codec: Codec, told_ms: int) -> None:
    payload = record(0, delta_ms=7) + record(1, delta_ms=3)
    data, header = prepare(batch_of(compress(codec, payload), 2, codec, told_ms))
    assert header.timestamp_ms_max == NOW_MS + 7
    assert [each.timestamp_ms for each in decode_batch(data, bytes_max=BYTES_MAX)] == [NOW_MS + 7, NOW_MS + 3]
    assert validate_batches(data, batch_bytes_max=BYTES_MAX) == [header]
