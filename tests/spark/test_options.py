"""Options, offsets and plans: what can be known without a session."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.control.interface import FeedPosition, PartitionBounds, Snapshot, TopicInfo
from braidlog.runtime.errors import InvalidSetting
from braidlog.spark.errors import JobError
from braidlog.spark.index import select_topics, state_of
from braidlog.spark.offsets import LogOffsets, TopicPartition, count_offsets, limit_offsets
from braidlog.spark.options import AtTime, End, Selection, includes_headers, read_options, write_options
from braidlog.spark.planning import COMBINED_BYTES_MAX, LogSlice, Piece, join_pieces, plan_tasks

SUBSCRIBED = {"subscribe": "a, b"}


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    batch = read_options(SUBSCRIBED, streaming=False)
    assert batch.selection.names == ("a", "b")
    assert batch.starting.everywhere is End.EARLIEST
    assert batch.ending.everywhere is End.LATEST
    assert batch.fail_on_data_loss
    assert not batch.read_committed
    stream = read_options(SUBSCRIBED, streaming=True)
    assert stream.starting.everywhere is End.LATEST
    assert not includes_headers(SUBSCRIBED)


def test_names_do_not_care_about_case_and_kafkas_own_are_passed_over() -> None:
    options = read_options(
        {
            "SUBSCRIBE": "a",
            "startingoffsets": "latest",
            "kafka.bootstrap.servers": "elsewhere:9092",
            "kafka.group.id": "g",
            "groupIdPrefix": "p",
            "kafka.isolation.level": "read_committed",
            "Braidlog.Control": "here:1",
        },
        streaming=False,
    )
    assert options.starting.everywhere is End.LATEST
    assert options.read_committed
    assert options.place.control == "here:1"


def test_positions_by_partition_and_time() -> None:
    options = read_options(
        {
            "subscribe": "a",
            "startingOffsets": json.dumps({"a": {"0": 5, "1": -1, "2": -2}}),
            "endingOffsetsByTimestamp": json.dumps({"a": {"0": 17}}),
        },
        streaming=False,
    )
    assert options.starting.by_partition == {"a": {0: 5, 1: End.LATEST, 2: End.EARLIEST}}
    assert options.ending.by_partition == {"a": {0: AtTime(17)}}
    assert options.ending.lenient


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "0 of the options"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "2 of the options"),
        ({"subscribePattern": "("}, "cannot be read"),
        ({"assign": '{"a": 0}'}, "no list of partitions"),
        ({"assign": "a"}, "not JSON"),
        ({"subscribe": "a", "startingOffsets": "soon"}, "not JSON"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -7}}'}, "no offset"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"x": 7}}'}, "no partitions"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "endingOffsets"),
        ({"subscribe": "a", "endingOffsets": '{"a": {"0": -2}}'}, "earliest"),
        ({"subscribe": "a", "startingTimestamp": "yesterday"}, "no time"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"subscribe": "a", "minPartitions": "0"}, "minPartitions"),
        ({"subscribe": "a", "isolation.level": "serializable"}, "unknown"),
        ({"subscribe": "a", "startingOffset": "latest"}, "unknown option"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidSetting, match=text):
        read_options(options, streaming=False)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidSetting, match="a stream has no end"):
        read_options({"subscribe": "a", "endingOffsets": "latest"}, streaming=True)


def test_write_options() -> None:
    options = write_options({"topic": "t", "kafka.compression.type": "zstd", "writerId": "nightly", "batchId": "0"})
    assert (options.topic, options.compression, options.writer_id, options.batch_id) == ("t", "zstd", "nightly", 0)
    for wrong in ({"compression.type": "rar"}, {"writerId": "nightly"}, {"batchId": "1"}, {"objectBytes": "-1"}):
        with pytest.raises(InvalidSetting):
            write_options(wrong)


def test_offsets_survive_json_and_are_always_written_alike() -> None:
    offsets = LogOffsets({("b", 10): 1, ("b", 9): 2, ("a", 0): 3}, {"b": "ff", "a": "00"})
    text = json.dumps(offsets.as_json())
    assert text == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}, "#ids": {"a": "00", "b": "ff"}}'
    assert LogOffsets.from_json(json.loads(text)) == offsets
    with pytest.raises(JobError, match="checkpoint"):
        LogOffsets.from_json({"logOffset": 5})


_PARTITIONS = st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), st.integers(0, 1000), max_size=6)


@settings(max_examples=80, deadline=None)
@given(_PARTITIONS, st.data(), st.integers(1, 500))
def test_a_limit_is_kept_and_every_partition_moves(
    start: dict[TopicPartition, int], data: st.DataObject, limit: int
) -> None:
    end = {each: offset + data.draw(st.integers(0, 500)) for each, offset in start.items()}
    limited = limit_offsets(start, end, limit)
    assert limited.keys() == end.keys()
    assert all(start[each] <= limited[each] <= end[each] for each in end)
    assert all(limited[each] > start[each] for each in end if end[each] > start[each])
    assert count_offsets(start, limited) <= max(limit, len(end))
    if count_offsets(start, end) <= limit:
        assert limited == end


def a_slice(partition: int, lengths: list[int]) -> LogSlice:
    pieces = tuple(Piece(10 * i, 10 * i + 10, f"object-{i}", 0, length) for i, length in enumerate(lengths))
    return LogSlice("t", partition, 100 + partition, 0, 10 * len(lengths), pieces)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 3 * COMBINED_BYTES_MAX), max_size=8), max_size=6),
    st.integers(1, 40_000_000),
    st.integers(0, 12),
)
def test_tasks_cover_everything_once_and_in_order(
    lengths: list[list[int]], task_bytes_max: int, tasks_min: int
) -> None:
    slices = [a_slice(partition, each) for partition, each in enumerate(lengths)]
    tasks = plan_tasks(slices, task_bytes_max=task_bytes_max, tasks_min=tasks_min)
    parts = [part for task in tasks for part in task]
    for whole in slices:
        of_partition = [part for part in parts if part.partition == whole.partition]
        assert tuple(piece for part in of_partition for piece in part.pieces) == whole.pieces
        bounds = [(part.start_offset, part.end_offset) for part in of_partition]
        if bounds:
            assert bounds[0][0] == whole.start_offset
            assert bounds[-1][1] == whole.end_offset
            assert all(before[1] == after[0] for before, after in pairwise(bounds))
    for task in tasks:
        size_bytes = sum(part.size_bytes for part in task)
        assert len(task) == 1 or size_bytes <= COMBINED_BYTES_MAX
        if len(task) == 1 and len(task[0].pieces) > 1:
            assert size_bytes <= task_bytes_max + max(piece.length for piece in task[0].pieces)


def test_as_many_tasks_as_asked_for() -> None:
    slices = [a_slice(partition, [1000] * 4) for partition in range(3)]
    assert len(plan_tasks(slices, task_bytes_max=1 << 30, tasks_min=0)) == 1
    assert len(plan_tasks(slices, task_bytes_max=1 << 30, tasks_min=6)) == 6
    assert len(plan_tasks(slices, task_bytes_max=1 << 30, tasks_min=100)) == 12
    assert plan_tasks([], task_bytes_max=1, tasks_min=5) == []


def snapshot() -> Snapshot:
    topics = [
        TopicInfo(b"a" * 16, "a", [1, 2], {}, 1, 0),
        TopicInfo(b"b" * 16, "b", [3], {}, 1, 0),
    ]
    bounds = [
        PartitionBounds(1, 0, 10, 100),
        PartitionBounds(2, 5, 20, 100, first_unstable_offset=12, aborted_end_offset=9),
        PartitionBounds(3, 7, 7, 0),
    ]
    return Snapshot(FeedPosition(1, 1), "cluster", topics, bounds, [], {})


def test_topics_are_selected() -> None:
    assert [topic.name for topic, _ in select_topics(snapshot(), Selection(names=("b", "a")))] == ["a", "b"]
    assert [topic.name for topic, _ in select_topics(snapshot(), Selection(pattern="[b-z]"))] == ["b"]
    assert [rest for _, rest in select_topics(snapshot(), Selection(assigned={"a": (1,)}))] == [(1,)]
    with pytest.raises(JobError, match="no topic c"):
        select_topics(snapshot(), Selection(names=("a", "c")))
    with pytest.raises(JobError, match="no partition 2"):
        select_topics(snapshot(), Selection(assigned={"a": (2,)}))


def test_committed_data_ends_before_the_first_open_transaction() -> None:
    everything = Selection(names=("a", "b"))
    state = state_of(snapshot(), everything, read_committed=False)
    assert {each: (known.start_offset, known.end_offset) for each, known in state.items()} == {
        ("a", 0): (0, 10),
        ("a", 1): (5, 20),
        ("b", 0): (7, 7),
    }
    assert state_of(snapshot(), everything, read_committed=True)[("a", 1)].end_offset == 12


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 1000), st.integers(1, 100)),
        max_size=12,
        unique_by=lambda x: x[:2],
    ),
    st.integers(0, 50),
)
def test_neighbours_are_fetched_together(places: list[tuple[str, int, int]], gap: int) -> None:
    pieces = [Piece(0, 1, key, position, length) for key, position, length in places]
    joined = join_pieces(pieces, gap_bytes_max=gap)
    assert joined.keys() == set(pieces)
    for piece, wide in joined.items():
        assert piece.key == wide.key
        assert wide.start <= piece.position
        assert piece.position + piece.length <= wide.end
    ranges = sorted(set(joined.values()))
    assert all(before.key != after.key or before.end + gap < after.start for before, after in pairwise(ranges))
