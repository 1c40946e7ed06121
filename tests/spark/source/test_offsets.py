"""Offsets of many partitions: in checkpoints, in progress, and limited by a trigger."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.spark.errors import JobError
from braidlog.spark.source.offsets import (
    METRICS,
    LogOffsets,
    TopicPartition,
    count_offsets,
    limit_offsets,
    offsets_behind,
)


def test_offsets_survive_json_and_are_always_written_alike() -> None:
    offsets = LogOffsets({("b", 10): 1, ("b", 9): 2, ("a", 0): 3}, {"b": "ff", "a": "00"})
    text = json.dumps(offsets.as_json())
    assert text == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}, "#ids": {"a": "00", "b": "ff"}}'
    assert LogOffsets.from_json(json.loads(text)) == offsets
    with pytest.raises(JobError, match="checkpoint"):
        LogOffsets.from_json({"logOffset": 5})


def test_how_far_a_stream_is_behind_has_the_names_of_sparks_kafka_source() -> None:
    reached, latest = {("a", 0): 5, ("a", 1): 9}, {("a", 0): 5, ("a", 1): 12, ("a", 2): 7}
    behind = offsets_behind(reached, latest)
    assert behind == {"minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 3, "avgOffsetsBehindLatest": 1.5}
    assert offsets_behind({}, {})["avgOffsetsBehindLatest"] == 0.0
    told = {**LogOffsets(latest).as_json(), METRICS: behind}
    assert LogOffsets.from_json(told) == LogOffsets(latest)


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
    # A share below one is rounded up, so that every partition moves. All others are rounded down.
    rounded_up = sum(limited[each] == start[each] + 1 for each in end)
    assert count_offsets(start, limited) <= limit + rounded_up
    if count_offsets(start, end) <= limit:
        assert limited == end
