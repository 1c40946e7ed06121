"""Compaction against a dictionary, and rule by rule."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compaction.reference import PlacedBatch, compact, read_log
from tests.compaction.whole_partition import compact_partition
from tests.records.run_summary import summarize_run

from braidlog.compaction.limits import CompactionLimits
from braidlog.compaction.rewriter import Outcome
from braidlog.compaction.rules import LastBatch, Rules
from braidlog.compaction.runs import CompactedRun
from braidlog.records.aborted import AbortedTransaction
from braidlog.records.batch import (
    HEADER_BYTES,
    NO_PRODUCER,
    TRANSACTIONAL_BIT,
    BatchProducer,
    TimestampType,
    read_header,
    stamp_log_append_time,
)
from braidlog.records.codec import Codec
from braidlog.records.errors import InvalidBatch
from braidlog.records.marker import Marker, MarkerType, encode_marker
from braidlog.records.record import Record, encode_batch

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
SEED = bytes(range(16))
RULES = Rules(now_ms=NOW_MS, delete_retention_ms=DAY_MS)


class StoredExtent(NamedTuple):
    base_offset: int
    end_offset: int
    data: bytes


def extents_of(*groups: list[bytes], base_offset: int = 0) -> list[StoredExtent]:
    """Extents of whole batches, one behind the other, with offsets as they would be sequenced."""
    extents: list[StoredExtent] = []
    for group in groups:
        log = read_log([(base_offset, b"".join(group))])
        end_offset = log[-1].header.end_offset
        extents.append(StoredExtent(base_offset, end_offset, b"".join(group)))
        base_offset = end_offset
    return extents


class Compacted(NamedTuple):
    runs: list[CompactedRun]
    outcome: Outcome[StoredExtent]

    @property
    def extents(self) -> list[StoredExtent]:
        """The partition after the swap, as far as it was compacted."""
        written = [StoredExtent(run.base_offset, run.end_offset, b"".join(run.parts)) for run in self.runs]
        return sorted([*written, *self.outcome.kept])

    @property
    def log(self) -> list[PlacedBatch]:
        return read_log([(extent.base_offset, extent.data) for extent in self.extents])

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.log for record in batch.records]

    @property
    def values(self) -> dict[int, bytes | None]:
        return {record.offset: record.value for record in self.records}


def run(extents: list[StoredExtent], rules: Rules = RULES, **options: Any) -> Compacted:
    dirty_offset = options.pop("dirty_offset", 0)
    limits = CompactionLimits(**options)
    generator = compact_partition(
        extents, lambda extent: extent.data, dirty_offset=dirty_offset, rules=rules, seed=SEED, limits=limits
    )
    runs: list[CompactedRun] = []
    while True:
        try:
            runs.append(next(generator))
        except StopIteration as stopped:
            compacted = Compacted(runs, stopped.value)
            check_shape(extents, compacted)
            return compacted


def check_shape(extents: list[StoredExtent], compacted: Compacted) -> None:
    """What must hold of every compaction: whatever is replaced is covered, and what is written is right in itself."""
    outcome = compacted.outcome
    done = [extent for extent in extents if extent.base_offset < outcome.clean_end_offset]
    assert sorted([*outcome.replaced, *outcome.kept]) == done
    place = done[0].base_offset if done else 0
    for extent in compacted.extents:
        assert extent.base_offset == place
        place = extent.end_offset
    assert place == (done[-1].end_offset if done else 0)
    for each in compacted.runs:
        data = memoryview(b"".join(each.parts))
        assert each.summary == summarize_run([data])
        assert each.summary.length == len(data) > 0
        log = read_log([(each.base_offset, bytes(data))])  # checks CRCs
        assert all(each.base_offset <= batch.header.base_offset for batch in log)
        assert log[-1].header.end_offset <= each.end_offset
        assert each.summary.record_count == sum(len(batch.records) for batch in log)
    offsets = [batch.header.base_offset for batch in compacted.log]
    assert offsets == sorted(set(offsets))


def batch_of(*pairs: tuple[bytes | None, bytes | None], **options: Any) -> bytes:
    return encode_batch([Record(at, NOW_MS, key, value) for at, (key, value) in enumerate(pairs)], **options)


# ── against the dictionary ──

keys = st.sampled_from([None, b"", b"a", b"b", b"c", b"dd", b"eee", bytes(40)])
values = st.none() | st.binary(max_size=3)
producers = st.sampled_from([-1, 1, 2])


@st.composite
def stored_batches(draw: st.DrawFn) -> bytes:
    producer_id = draw(producers)
    if producer_id >= 0 and draw(st.integers(0, 5)) == 0:
        kind = draw(st.sampled_from(MarkerType))
        return encode_marker(Marker(kind, 0, NOW_MS, producer_id, 0, 0))
    offset = 0
    records = []
    for _ in range(draw(st.integers(0, 5))):
        offset += draw(st.sampled_from([0, 0, 0, 1]))
        records.append(Record(offset, NOW_MS + draw(st.integers(-(10**6), 10**6)), draw(keys), draw(values), ()))
        offset += 1
    batch = encode_batch(
        records,
        codec=draw(st.sampled_from(Codec)),
        last_offset_delta=max(0, offset - 1) + draw(st.sampled_from([0, 0, 2])),
        producer=BatchProducer(producer_id, 0, 0) if producer_id >= 0 else NO_PRODUCER,
        flags=draw(st.sampled_from([0, TRANSACTIONAL_BIT])) if producer_id >= 0 else 0,
        delete_horizon_ms=draw(st.sampled_from([None, None, NOW_MS - 1, NOW_MS, NOW_MS + 1])),
    )
    if draw(st.integers(0, 5)) == 0:
        batch = stamp_log_append_time(memoryview(batch), read_header(memoryview(batch)), NOW_MS + 7)
    return batch


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[StoredExtent], Rules, int]:
    groups = draw(st.lists(st.lists(stored_batches(), min_size=1, max_size=4), min_size=1, max_size=4))
    extents = extents_of(*groups, base_offset=draw(st.sampled_from([0, 1_000])))
    low, high = extents[0].base_offset, extents[-1].end_offset
    aborted = []
    for producer_id in (1, 2):
        first = draw(st.integers(low, high))
        aborted.append(AbortedTransaction(producer_id, first, first + draw(st.integers(0, 10))))
    rules = Rules(
        now_ms=NOW_MS,
        delete_retention_ms=draw(st.sampled_from([0, DAY_MS])),
        log_start_offset=draw(st.sampled_from([0, low, (low + high) // 2])),
        tombstones_end_offset=draw(st.sampled_from([2**63 - 1, high, (low + high) // 2, 0])),
        aborted=aborted,
        last_batches={1: LastBatch(draw(st.integers(low, high)), 0)} if draw(st.booleans()) else {},
    )
    # Below the dirty offset no key is twice; where it is, nothing is promised but that nothing wrong goes.
    return extents, rules, draw(st.sampled_from([0, low, (low + high) // 2, high]))


@settings(max_examples=150, deadline=None)
@given(histories(), st.sampled_from([None, 1, 200]), st.sampled_from([100, 10_000]))
def test_what_stays_is_what_a_dictionary_says(
    history: tuple[list[StoredExtent], Rules, int], keep_bytes_min: int | None, object_bytes_target: int
) -> None:
    extents, rules, dirty_offset = history
    compacted = run(
        extents,
        rules,
        dirty_offset=dirty_offset,
        keep_bytes_min=keep_bytes_min,
        object_bytes_target=object_bytes_target,
    )
    log = read_log([(extent.base_offset, extent.data) for extent in extents])
    end_offset = max(dirty_offset, extents[-1].end_offset)
    assert compacted.outcome.clean_end_offset == end_offset
    expected = compact(log, rules, dirty_offset=dirty_offset, end_offset=end_offset)
    found = [(record, batch.header) for batch in compacted.log for record in batch.records]
    assert [record for record, _ in found] == [record for record, _ in expected.records]
    for (record, after), (_, before) in zip(found, expected.records, strict=True):
        check_header(record, before, after, rules)
    empty = [batch.header.end_offset - 1 for batch in compacted.log if not batch.records]
    assert set(expected.empty_batches) <= set(empty)
    statistics = compacted.outcome.statistics
    assert statistics.records_out == len(found)
    assert statistics.bytes_in == sum(len(extent.data) for extent in extents)


def check_header(record: Record, before: Any, after: Any, rules: Rules) -> None:
    """All that a batch says of itself is as it was, but for the number of records, their times, and the horizon."""
    unchanged = ("base_offset", "last_offset_delta", "producer_id", "producer_epoch", "base_sequence", "codec")
    for name in (*unchanged, "is_transactional", "is_control", "timestamp_type"):
        assert getattr(after, name) == getattr(before, name), name
    if before.has_delete_horizon:
        assert (after.has_delete_horizon, after.timestamp_ms_base) == (True, before.timestamp_ms_base)
    elif record.value is None and not before.is_control:
        assert (after.has_delete_horizon, after.timestamp_ms_base) == (True, rules.delete_horizon_ms)


@settings(max_examples=50, deadline=None)
@given(histories())
def test_a_second_pass_changes_nothing(history: tuple[list[StoredExtent], Rules, int]) -> None:
    extents, rules, _ = history
    rules = replace(rules, delete_retention_ms=DAY_MS)
    once = run(extents, rules)
    again = run(once.extents, rules, dirty_offset=once.outcome.clean_end_offset)
    assert again.records == once.records
    from_scratch = run(once.extents, rules)
    assert from_scratch.records == once.records


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.booleans()), min_size=1, max_size=400),
    st.integers(1, 50),
    st.integers(1, 4),
)
def test_several_passes_with_a_small_map_end_where_one_large_pass_does(
    writes: list[tuple[int, bool]], repeats: int, extent_count: int
) -> None:
    pairs = [
        (b"key-%d" % ((key + 7 * turn) % 3_000), None if is_tombstone else b"%d" % turn)
        for turn in range(repeats)
        for key, is_tombstone in writes
    ]
    size = -(-len(pairs) // extent_count)
    groups = [
        [batch_of(*pairs[at : at + 50]) for at in range(start, min(start + size, len(pairs)), 50)]
        for start in range(0, len(pairs), size)
    ]
    extents = extents_of(*groups)
    large = run(extents)
    assert large.outcome.clean_end_offset == extents[-1].end_offset
    dirty_offset = passes = 0
    left = extents
    while dirty_offset < extents[-1].end_offset:
        small = run(left, dirty_offset=dirty_offset, key_map_bytes_max=24 * 1024)
        assert small.outcome.clean_end_offset > dirty_offset
        dirty_offset = small.outcome.clean_end_offset
        untouched = [extent for extent in left if extent.base_offset >= dirty_offset]
        left = [*small.extents, *untouched]
        passes += 1
    found = [
        record for batch in read_log([(extent.base_offset, extent.data) for extent in left]) for record in batch.records
    ]
    assert found == large.records
    assert passes >= -(-large.outcome.statistics.key_count // 768)


# ── rule by rule ──


def test_a_tombstone_gets_its_time_when_it_is_first_met_and_goes_when_that_is_over() -> None:
    extents = extents_of([batch_of((b"a", b"1"), (b"b", b"1"))], [batch_of((b"a", None))])
    first = run(extents)
    assert first.values == {1: b"1", 2: None}
    assert first.outcome.tombstones_due_ms == NOW_MS + DAY_MS
    header = first.log[-1].header
    assert (header.has_delete_horizon, header.timestamp_ms_base) == (True, NOW_MS + DAY_MS)
    assert first.records[-1].timestamp_ms == NOW_MS

    def later(extents: list[StoredExtent], after_ms: int, **options: Any) -> Compacted:
        rules = Rules(now_ms=NOW_MS + after_ms, delete_retention_ms=DAY_MS, **options)
        return run(extents, rules, dirty_offset=3)

    second = later(first.extents, DAY_MS - 1)
    assert second.values == {1: b"1", 2: None}
    assert second.outcome.tombstones_due_ms == NOW_MS + DAY_MS
    assert later(second.extents, DAY_MS).values == {1: b"1"}
    assert later(second.extents, DAY_MS).outcome.tombstones_due_ms is None
    held = later(second.extents, DAY_MS, tombstones_end_offset=2)
    assert held.values == {1: b"1", 2: None}
    assert held.outcome.tombstones_due_ms == NOW_MS + 2 * DAY_MS
    assert later(second.extents, DAY_MS, tombstones_end_offset=3).values == {1: b"1"}


def test_a_newer_value_takes_the_place_of_a_tombstone() -> None:
    extents = extents_of([batch_of((b"a", None), (b"a", b"2"))])
    assert run(extents).values == {1: b"2"}


def test_records_without_a_key_go() -> None:
    assert run(extents_of([batch_of((None, b"x"), (b"a", b"1"), (None, None))])).values == {1: b"1"}


def test_markers_stay_and_aborted_records_go_and_count_for_nothing() -> None:
    transactional = {"producer": BatchProducer(4, 1, 0), "flags": TRANSACTIONAL_BIT}
    extents = extents_of(
        [
            batch_of((b"a", b"old")),
            batch_of((b"a", b"aborted"), (b"b", b"aborted"), **transactional),
            encode_marker(Marker(MarkerType.ABORT, 0, NOW_MS, 4, 1, 0)),
            batch_of((b"b", b"committed"), **transactional),
            encode_marker(Marker(MarkerType.COMMIT, 0, NOW_MS, 4, 1, 0)),
        ]
    )
    rules = Rules(now_ms=NOW_MS, delete_retention_ms=DAY_MS, aborted=[AbortedTransaction(4, 1, 3)])
    compacted = run(extents, rules)
    assert [record.offset for record in compacted.records] == [0, 3, 4, 5]
    assert [batch.header.is_control for batch in compacted.log] == [False, True, False, True]


def test_an_emptied_batch_stays_for_its_producer() -> None:
    producer = BatchProducer(4, 1, 5)
    extents = extents_of([batch_of((b"a", b"1"), (b"a", b"2"), producer=producer)], [batch_of((b"a", b"3"))])
    rules = Rules(now_ms=NOW_MS, delete_retention_ms=DAY_MS, last_batches={4: LastBatch(1, 1)})
    compacted = run(extents, rules)
    empty, other = compacted.log
    assert (empty.records, other.records[0].value) == ([], b"3")
    header = empty.header
    assert (header.base_offset, header.last_offset_delta, header.producer_id, header.base_sequence) == (0, 1, 4, 5)
    # It stays when it is met again, and goes when the producer has sent more.
    assert run(compacted.extents, rules, dirty_offset=3).log == compacted.log
    gone = run(compacted.extents, RULES, dirty_offset=3)
    assert [batch.header.base_offset for batch in gone.log] == [2]


def test_where_nothing_stays_an_empty_batch_holds_the_place() -> None:
    compacted = run(extents_of([batch_of((None, b"x"))], [batch_of((None, b"y"), codec=Codec.GZIP)]))
    [batch] = compacted.log
    assert (batch.records, batch.header.base_offset, batch.header.codec) == ([], 1, Codec.NONE)
    assert [(each.base_offset, each.end_offset) for each in compacted.runs] == [(0, 2)]


def test_large_extents_of_which_nothing_goes_are_kept() -> None:
    first = batch_of(*((b"k%d" % at, bytes(100)) for at in range(20)))
    extents = extents_of([batch_of((b"x", b"1"))], [first], [batch_of((b"x", b"2"))])
    compacted = run(extents, keep_bytes_min=1_000)
    assert compacted.outcome.kept == [extents[1]]
    assert compacted.outcome.replaced == [extents[0], extents[2]]
    assert [(each.base_offset, each.end_offset) for each in compacted.runs] == [(0, 1), (21, 22)]
    assert compacted.outcome.statistics.bytes_out < 1_000
    changed = extents_of([first, batch_of((b"x", b"1"))], [batch_of((b"x", b"2"))])
    assert run(changed, keep_bytes_min=1_000).outcome.kept == []


def test_objects_are_cut_at_their_target() -> None:
    group = [batch_of((b"k%d" % at, bytes(900))) for at in range(50)]
    compacted = run(extents_of(group, base_offset=7), object_bytes_target=10_000)
    assert [len(each.summary.batches) for each in compacted.runs] == [10, 10, 10, 10, 10]
    assert all(each.summary.length <= 10_000 for each in compacted.runs)
    assert len(compacted.records) == 50


def test_every_extent_is_read_at_most_twice_and_those_behind_the_end_once() -> None:
    reads: list[int] = []

    def read(extent: StoredExtent) -> bytes:
        reads.append(extent.base_offset)
        return extent.data

    extents = extents_of(*([batch_of(*((b"%d-%d" % (turn, at), b"") for at in range(300)))] for turn in range(5)))
    limits = CompactionLimits(key_map_bytes_max=24 * 1024)
    for _ in compact_partition(extents, read, dirty_offset=300, rules=RULES, seed=SEED, limits=limits):
        pass
    # 768 keys fit: two extents from the dirty offset on, and a part of a third.
    assert reads == [300, 600, 900, 0, 300, 600, 900]


# ── what must not happen ──


def broken(batch: bytes, position: int, value: int) -> bytes:
    """A batch whose records make no sense, with a CRC that is right."""
    damaged = bytearray(batch)
    damaged[position] = value
    struct.pack_into(">I", damaged, 17, crc32c(bytes(damaged[21:])))
    return bytes(damaged)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_batches_that_make_no_sense_stay_as_they_are(codec: Codec) -> None:
    """Clients can write them. They must neither stop compaction nor be lost, nor push out what can be read."""
    odd = broken(batch_of((b"a", bytes(90)), (b"b", bytes(90)), codec=codec), HEADER_BYTES, 0x01)
    extents = extents_of([batch_of((b"a", b"1"), (b"c", b"1"))])
    extents.append(StoredExtent(2, 4, odd))
    extents += extents_of([batch_of((b"c", b"2"))], base_offset=4)
    generator = compact_partition(extents, lambda extent: extent.data, dirty_offset=0, rules=RULES, seed=SEED)
    runs, outcome = drain(generator)
    data = b"".join(part for each in runs for part in each.parts)
    assert odd[HEADER_BYTES:] in data
    assert outcome.statistics.unreadable_batches == 1
    sizes = [batch.length for batch in runs[0].summary.batches]
    first = read_log([(0, data[: sizes[0]])])
    assert [record.value for record in first[0].records] == [b"1"]


def drain(generator: Iterator[CompactedRun]) -> tuple[list[CompactedRun], Any]:
    runs = []
    while True:
        try:
            runs.append(next(generator))
        except StopIteration as stopped:
            return runs, stopped.value


def test_damage_ends_the_compaction() -> None:
    damaged = bytearray(batch_of((b"a", b"1")))
    damaged[-1] ^= 1
    for extents in (
        [StoredExtent(0, 1, bytes(damaged))],
        [StoredExtent(0, 1, batch_of((b"a", b"1"), (b"b", b"1")))],
        [StoredExtent(0, 1, batch_of((b"a", b"1"))[:-1])],
    ):
        with pytest.raises(InvalidBatch):
            run(extents)


def test_a_time_too_far_from_the_horizon_leaves_the_tombstone_as_it_is() -> None:
    far = encode_batch([Record(0, -(2**63), b"a", None), Record(1, -(2**63) + 5, b"b", b"1")])
    compacted = run(extents_of([far]))
    assert [record.timestamp_ms for record in compacted.records] == [-(2**63), -(2**63) + 5]
    assert not compacted.log[0].header.has_delete_horizon


def test_log_append_time_is_still_everyones_time() -> None:
    batch = batch_of((b"a", b"1"), (b"a", None), (b"b", b"1"))
    stamped = stamp_log_append_time(memoryview(batch), read_header(memoryview(batch)), NOW_MS + 9)
    compacted = run(extents_of([stamped]))
    assert [(record.offset, record.timestamp_ms) for record in compacted.records] == [(1, NOW_MS + 9), (2, NOW_MS + 9)]
    assert compacted.log[0].header.timestamp_type is TimestampType.LOG_APPEND
    assert compacted.log[0].header.has_delete_horizon


def test_the_maps_limits() -> None:
    from braidlog.compaction.keymap import KeyMap

    with pytest.raises(ValueError, match="16"):
        KeyMap(bytes_max=1_000_000, seed=b"short")
    with pytest.raises(ValueError, match="too few"):
        KeyMap(bytes_max=1_000, seed=SEED)
