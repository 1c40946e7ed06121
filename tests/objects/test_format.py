"""The object format: what is written can be read, and what is damaged is recognised."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import FakeClock

from braidlog.objects import format as object_format
from braidlog.objects.format import (
    TAIL_READ_BYTES,
    TRAILER_BYTES,
    BadMagic,
    ChecksumMismatch,
    CorruptObject,
    InvalidFooter,
    TruncatedObject,
    UnknownVersion,
    decode_footer_bytes,
    decode_object_tail,
    decode_trailer,
    describe,
    encode_footer,
    encode_tail,
    encode_trailer,
    extents_length,
    read_footer,
)
from braidlog.objects.layout import ARROW_STREAM, COMPACTED, BatchEntry, ExtentEntry, Footer, RewrittenExtent
from braidlog.objects.open import open_store
from braidlog.objects.store import NotFound
from braidlog.records.batch import RECORD_COUNT_MAX
from braidlog.runtime import limits
from braidlog.runtime.entropy import SeededEntropy

GOLDEN = Path(__file__).parent / "golden" / "object-v1.bin"
GOLDEN_REWRITTEN = GOLDEN.with_name("object-rewritten-v1.bin")
NONCE = bytes(range(16))


def golden_footer() -> Footer:
    first, second = bytes([1]) * 16, bytes([2]) * 16
    extents = [
        ExtentEntry(first, 0, 0, 161, 12, 1_700_000_000_000, 1_700_000_000_500, 0, [
            BatchEntry(61, 2, 0, 1_700_000_000_000),
            BatchEntry(100, 10, 0x10, 1_700_000_000_500, 4711, 3, 17),
        ]),
        ExtentEntry(first, 7, 161, 70, 1, -1, -1, 0, [BatchEntry(70, 1, 2, -1, 4711, 3, 2**31 - 1)]),
        ExtentEntry(second, 3, 231, 25, 5, 0, 9, ARROW_STREAM, []),
    ]  # fmt: skip
    return Footer(NONCE, 42, "0a1b2c3d", 1_700_000_001_000, "eu-1a", extents)


def object_of(footer: Footer) -> bytes:
    return bytes(n % 251 for n in range(extents_length(footer))) + encode_tail(footer)


def footer_of(*extents: ExtentEntry, nonce: bytes = NONCE, incarnation: str = "abc", write_epoch: int = 1) -> Footer:
    return Footer(nonce, write_epoch, incarnation, 5, "z", list(extents))


def extent(**changes: object) -> ExtentEntry:
    given: dict[str, object] = {
        "topic_id": b"t" * 16,
        "partition": 0,
        "position": 0,
        "length": 130,
        "record_count": 5,
        "timestamp_ms_min": 1,
        "timestamp_ms_max": 2,
        "payload": 0,
        "batches": [BatchEntry(69, 3, 0, 2), BatchEntry(61, 2, 0, 2)],
    }
    return ExtentEntry(**{**given, **changes})  # type: ignore[arg-type]


def test_the_golden_object_is_written_the_same_for_ever() -> None:
    assert object_of(golden_footer()) == GOLDEN.read_bytes()


def rewritten_footer() -> Footer:
    first = golden_footer()
    rewritten = [RewrittenExtent(0, 12, 3), RewrittenExtent(2**40, 2**40 + 9, 0), RewrittenExtent(5, 6, 7)]
    return msgspec.structs.replace(first, kind=COMPACTED, rewritten=rewritten)


def test_the_golden_rewritten_object_is_written_and_read_the_same_for_ever() -> None:
    data = GOLDEN_REWRITTEN.read_bytes()
    assert object_of(rewritten_footer()) == data
    assert decode_object_tail(data, len(data)) == rewritten_footer()


def test_a_rewritten_object_needs_offsets_for_every_extent() -> None:
    footer = msgspec.structs.replace(rewritten_footer(), rewritten=[RewrittenExtent(0, 12, 3)])
    with pytest.raises(InvalidFooter, match="rewritten"):
        decode_footer_bytes(encode_footer(footer))


def test_the_golden_object_can_be_read() -> None:
    data = GOLDEN.read_bytes()
    assert decode_object_tail(data, len(data)) == golden_footer()
    assert data[-8:] == b"BRAIDLOG"
    assert data[-36:-20] == NONCE
    assert int.from_bytes(data[-20:-16], "big") == len(data) - 36 - 256
    assert data[-12:-8] == b"\x00\x01\x00\x00"


def test_a_trailer_has_36_bytes() -> None:
    assert TRAILER_BYTES == 36
    trailer = decode_trailer(encode_trailer(b"footer", NONCE))
    assert (trailer.nonce, trailer.footer_length, trailer.version) == (NONCE, 6, 1)


def test_an_object_without_extents() -> None:
    footer = footer_of()
    data = object_of(footer)
    assert decode_object_tail(data, len(data)) == footer


batches = st.builds(
    BatchEntry,
    length=st.integers(61, 5000),
    offset_count=st.integers(1, 1000),
    attributes=st.integers(-(2**15), 2**15 - 1),
    timestamp_ms_max=st.integers(-(2**63), 2**63 - 1),
    producer_id=st.integers(-1, 2**63 - 1),
    producer_epoch=st.integers(-1, 2**15 - 1),
    base_sequence=st.integers(-1, 2**31 - 1),
)


@st.composite
def footers(draw: st.DrawFn) -> Footer:
    places = draw(st.sets(st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 99_999)), max_size=5))
    position = 0
    extents = []
    for topic_id, partition in sorted(places):
        held = draw(st.lists(batches, min_size=1, max_size=4))
        length = sum(batch.length for batch in held)
        count = sum(batch.offset_count for batch in held)
        extents.append(ExtentEntry(topic_id, partition, position, length, count, 0, 9, 0, held))
        position += length
    nonce = draw(st.binary(min_size=16, max_size=16))
    return Footer(
        nonce, draw(st.integers(0, 2**40)), draw(st.text("abc123", min_size=1, max_size=9)), 7, "zone", extents
    )


@settings(max_examples=60, deadline=None)
@given(footers())
def test_what_is_encoded_is_decoded(footer: Footer) -> None:
    data = object_of(footer)
    assert decode_object_tail(data, len(data)) == footer
    assert decode_footer_bytes(encode_footer(footer)) == footer
    tail = memoryview(data)[extents_length(footer) :]
    assert decode_object_tail(tail, len(data)) == footer


@settings(max_examples=60, deadline=None)
@given(footers(), st.data())
def test_a_truncated_object_is_recognised(footer: Footer, data: st.DataObject) -> None:
    whole = object_of(footer)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(CorruptObject):
        decode_object_tail(cut, len(cut))
    front_cut = whole[data.draw(st.integers(1, len(whole) - 1)) :]
    with pytest.raises(CorruptObject):
        decode_object_tail(front_cut, len(front_cut))


def test_every_flipped_bit_of_footer_and_trailer_is_recognised() -> None:
    whole = object_of(golden_footer())
    for index in range(extents_length(golden_footer()), len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[index] ^= 1 << bit
            with pytest.raises(CorruptObject):
                decode_object_tail(damaged, len(damaged))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_footer_with_a_right_checksum_is_refused_or_valid(data: st.DataObject) -> None:
    """Whoever writes the footer can also compute its checksum. Only `CorruptObject` may come of it."""
    footer_bytes = bytearray(encode_footer(golden_footer()))
    for _ in range(data.draw(st.integers(1, 4))):
        footer_bytes[data.draw(st.integers(0, len(footer_bytes) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_footer_bytes(footer_bytes)
    except CorruptObject:
        return
    assert decode_footer_bytes(encode_footer(decoded)) == decoded


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(CorruptObject):
        decode_object_tail(noise, len(noise))
    with pytest.raises(CorruptObject):
        decode_footer_bytes(noise)
    with pytest.raises(CorruptObject):
        decode_footer_bytes(encode_footer(footer_of())[:-1] + noise + b"\xc1")


@pytest.mark.parametrize("count", [b"\xdd\xff\xff\xff\xff", b"\xdd\x04\x00\x00\x00", b"\xdc\xff\xff"])
def test_huge_counts_take_no_memory(count: bytes) -> None:
    with pytest.raises(InvalidFooter):
        decode_footer_bytes(encode_footer(footer_of())[:-1] + count)
    with pytest.raises(InvalidFooter):
        decode_footer_bytes(count)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(InvalidFooter):
        decode_footer_bytes(b"\x97" + encode_footer(footer_of())[1:] + b"\x91" * 100_000 + b"\x00")


BAD_EXTENTS = {
    "topic id": [extent(topic_id=b"t" * 15)],
    "no topic id": [extent(topic_id=b"")],
    "partition": [extent(partition=-1)],
    "partition too large": [extent(partition=limits.PARTITIONS_PER_TOPIC_MAX)],
    "starts late": [extent(position=1)],
    "negative position": [extent(position=-1)],
    "gap": [extent(), extent(partition=1, position=131)],
    "overlap": [extent(), extent(partition=1, position=129)],
    "same place": [extent(), extent(partition=1)],
    "twice": [extent(), extent(position=130)],
    "partitions out of order": [extent(partition=1), extent(position=130)],
    "topics out of order": [extent(topic_id=b"u" * 16), extent(position=130, partition=3)],
    "length": [extent(length=131)],
    "negative length": [extent(length=-130)],
    "records": [extent(record_count=6)],
    "no records": [extent(record_count=0)],
    "no batches": [extent(batches=[])],
    "payload": [extent(payload=2)],
    "empty arrow": [extent(payload=ARROW_STREAM, batches=[], length=0)],
    "timestamp": [extent(timestamp_ms_max=2**63)],
    "too long": [extent(payload=ARROW_STREAM, batches=[], length=limits.OBJECT_BYTES_MAX + 1)],
}
BAD_BATCHES = {
    "short": BatchEntry(60, 1, 0, 0),
    "negative length": BatchEntry(-61, 1, 0, 0),
    "no offsets": BatchEntry(61, 0, 0, 0),
    "negative offsets": BatchEntry(61, -1, 0, 0),
    "too many offsets": BatchEntry(61, limits.RECORDS_PER_BATCH_MAX + 1, 0, 0),
    "attributes": BatchEntry(61, 1, 2**15, 0),
    "timestamp": BatchEntry(61, 1, 0, 2**63),
    "producer id": BatchEntry(61, 1, 0, 0, producer_id=-2),
    "producer epoch": BatchEntry(61, 1, 0, 0, producer_epoch=2**15),
    "sequence": BatchEntry(61, 1, 0, 0, base_sequence=2**31),
}


@pytest.mark.parametrize("extents", BAD_EXTENTS.values(), ids=BAD_EXTENTS.keys())
def test_extents_that_contradict_are_refused(extents: list[ExtentEntry]) -> None:
    with pytest.raises(InvalidFooter):
        decode_footer_bytes(encode_footer(footer_of(*extents)))


@pytest.mark.parametrize("batch", BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_batches_out_of_range_are_refused(batch: BatchEntry) -> None:
    bad = extent(length=batch.length, record_count=batch.offset_count, batches=[batch])
    with pytest.raises(InvalidFooter):
        decode_footer_bytes(encode_footer(footer_of(bad)))


def test_a_footer_takes_the_largest_batch_that_producers_may_send() -> None:
    # Neither `records` nor `runtime` may import the other, so the limit stands in both.
    assert limits.RECORDS_PER_BATCH_MAX == RECORD_COUNT_MAX


@pytest.mark.parametrize(
    "footer",
    [footer_of(nonce=b"short"), footer_of(incarnation=""), footer_of(write_epoch=-1), footer_of(incarnation="x" * 300)],
)
def test_footers_out_of_range_are_refused(footer: Footer) -> None:
    with pytest.raises(InvalidFooter):
        decode_footer_bytes(encode_footer(footer))


def test_too_many_extents_and_batches_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    two = footer_of(extent(), extent(partition=1, position=130))
    assert decode_footer_bytes(encode_footer(two)) == two
    monkeypatch.setattr(object_format, "BATCHES_PER_OBJECT_MAX", 3)
    with pytest.raises(InvalidFooter, match="4 batches"):
        decode_footer_bytes(encode_footer(two))
    monkeypatch.setattr(object_format, "FOOTER_BYTES_MAX", 10)
    with pytest.raises(InvalidFooter, match="over the limit"):
        decode_footer_bytes(encode_footer(two))


def test_one_extent_too_many_is_refused() -> None:
    empty = [[b"", 0, 0, 0, 0, 0, 0, 0, []]] * (limits.EXTENTS_PER_OBJECT_MAX + 1)
    with pytest.raises(InvalidFooter):
        decode_footer_bytes(msgspec.msgpack.encode([NONCE, 1, "abc", 5, "z", empty]))
    many = [
        [b"t" * 16, number, number * 61, 61, 1, 0, 0, 0, [[61, 1, 0, 0]]]
        for number in range(limits.EXTENTS_PER_OBJECT_MAX + 1)
    ]
    with pytest.raises(InvalidFooter):
        decode_footer_bytes(msgspec.msgpack.encode([NONCE, 1, "abc", 5, "z", many]))
    fits = decode_footer_bytes(msgspec.msgpack.encode([NONCE, 1, "abc", 5, "z", many[:-1]]))
    assert len(fits.extents) == limits.EXTENTS_PER_OBJECT_MAX


def test_each_kind_of_damage_has_its_error() -> None:
    whole = object_of(golden_footer())
    size = len(whole)
    with pytest.raises(TruncatedObject):
        decode_object_tail(whole[-20:], size)
    with pytest.raises(TruncatedObject):
        decode_object_tail(whole[-TRAILER_BYTES:], size)
    with pytest.raises(BadMagic):
        decode_object_tail(whole[:-1] + b"g", size)
    with pytest.raises(UnknownVersion):
        decode_object_tail(whole[:-12] + b"\x00\x02" + whole[-10:], size)
    with pytest.raises(ChecksumMismatch):
        decode_object_tail(whole[: -TRAILER_BYTES - 1] + b"\x00" + whole[-TRAILER_BYTES:], size)
    with pytest.raises(InvalidFooter, match="nonce"):
        decode_object_tail(whole[:-TRAILER_BYTES] + b"n" * 16 + whole[-TRAILER_BYTES + 16 :], size)
    with pytest.raises(InvalidFooter, match="begins at"):
        decode_object_tail(whole, size + 1)


async def test_a_footer_is_read_by_one_request_or_two(clock: FakeClock, entropy: SeededEntropy) -> None:
    store = open_store("memory://", clock=clock, entropy=entropy, retry=None)
    lengths: list[int] = []
    get_tail = store.get_tail

    async def counted(key: str, length: int) -> object:
        lengths.append(length)
        return await get_tail(key, length)

    store.get_tail = counted  # type: ignore[method-assign, assignment]
    await store.put("small", object_of(golden_footer()))
    assert await read_footer(store, "small") == golden_footer()
    assert lengths == [TAIL_READ_BYTES]
    held = [BatchEntry(61, 1, 0, 1_700_000_000_000, 2**40, 5, 2**30) for _ in range(4000)]
    large = footer_of(extent(batches=held, length=61 * 4000, record_count=4000))
    await store.put("large", object_of(large))
    assert await read_footer(store, "large") == large
    assert lengths[1:] == [TAIL_READ_BYTES, len(encode_tail(large))]
    await store.put("foreign", b"not an object at all")
    with pytest.raises(CorruptObject):
        await read_footer(store, "foreign")
    with pytest.raises(NotFound):
        await read_footer(store, "none")


def test_a_description_is_plain_json() -> None:
    data = object_of(golden_footer())
    described = json.loads(json.dumps(describe(golden_footer(), len(data))))
    assert described["nonce"] == NONCE.hex()
    assert (described["extent_count"], described["batch_count"], described["record_count"]) == (3, 3, 18)
    assert described["extents"][2]["payload"] == "arrow"
    assert described["extents"][0]["batches"][1]["producer_id"] == 4711


def test_later_fields_are_ignored() -> None:
    """A newer release may add fields at the end of an array."""
    raw = msgspec.msgpack.decode(encode_footer(golden_footer()))
    raw += [0, [], "new"]
    assert decode_footer_bytes(msgspec.msgpack.encode(raw)) == golden_footer()
