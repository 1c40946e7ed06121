"""How far a stream has come and may go, asked of the reader itself."""

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.spark.log_driver import Braid
from tests.spark.readers import read, stream_reader

from braidlog.spark.errors import DataLoss, JobError
from braidlog.spark.source.readers import StreamReader

ALL = ReadAllAvailable()


def step(reader: StreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """One micro-batch of all that is there: where it ends, and its values."""
    end = reader.latestOffset(start, ALL)
    return end, [value for _, value in read(reader, reader.partitions(start, end))]


def test_what_is_there_at_the_start_can_be_left_out(braid: Braid) -> None:
    topic = braid.new_topic(1, prefix="latest")
    braid.produce(topic, [{"value": "before"}])
    reader = stream_reader(braid, subscribe=topic)
    start = reader.initialOffset()
    assert start[topic] == {"0": 1}
    assert reader.latestOffset(start, ALL) == start
    braid.produce(topic, [{"value": "after"}])
    assert step(reader, start)[1] == [b"after"]


def test_new_topics_of_a_pattern_are_read_from_their_beginning(braid: Braid) -> None:
    first = braid.new_topic(1, prefix="growing")
    braid.produce(first, [{"value": "a"}])
    reader = stream_reader(braid, subscribePattern="growing-.*", startingOffsets="earliest")
    end, values = step(reader, reader.initialOffset())
    assert values == [b"a"]
    second = braid.new_topic(1, prefix="growing")
    braid.produce(second, [{"value": "b"}])
    end, values = step(reader, end)
    assert values == [b"b"]
    assert step(reader, end) == (end, [])


def test_what_is_available_now_is_all_that_counts(braid: Braid) -> None:
    topic = braid.new_topic(1, prefix="now")
    braid.produce(topic, [{"value": str(i)} for i in range(5)])
    reader = stream_reader(braid, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="3")
    assert reader.getDefaultReadLimit() == ReadMaxRows(3)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    braid.produce(topic, [{"value": "late"}])
    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert [first[topic], second[topic]] == [{"0": 3}, {"0": 5}]
    assert reader.latestOffset(second, ALL) == second


def test_a_stream_notices_what_it_has_missed(braid: Braid) -> None:
    topic = braid.new_topic(1, prefix="missed")
    braid.produce(topic, [{"value": str(i)} for i in range(10)])
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    reader = stream_reader(braid, **options)
    end, _ = step(reader, reader.initialOffset())
    braid.produce(topic, [{"value": str(i)} for i in range(10, 30)])
    braid.delete_records(topic, 0, 20)
    with pytest.raises(DataLoss, match=r"records 10 to 19 .* expired or were deleted"):
        step(reader, end)
    lenient = stream_reader(braid, **options, failOnDataLoss="false")
    assert step(lenient, end)[1] == [str(i).encode() for i in range(20, 30)]


def test_a_topic_that_was_created_again_is_another_topic(braid: Braid) -> None:
    topic = braid.new_topic(1, prefix="again")
    braid.produce(topic, [{"value": "first"}])
    reader = stream_reader(braid, subscribe=topic, startingOffsets="earliest")
    end, _ = step(reader, reader.initialOffset())
    braid.delete_topic(topic)
    braid.create_topic(topic, 1)
    braid.produce(topic, [{"value": "other"}, {"value": "another"}])
    with pytest.raises(JobError, match="deleted and created again"):
        step(reader, end)


def test_enough_must_have_come_or_the_wait_be_over(braid: Braid) -> None:
    topic = braid.new_topic(1, prefix="patient")
    options = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": "10"}
    reader = stream_reader(braid, **options, maxTriggerDelay="1h")
    start = reader.initialOffset()
    braid.produce(topic, [{"value": str(i)} for i in range(9)])
    assert reader.latestOffset(start, ALL) == start
    braid.produce(topic, [{"value": "9"}])
    assert reader.latestOffset(start, ALL)[topic] == {"0": 10}
    braid.produce(topic, [{"value": "10"}])
    hasty = stream_reader(braid, **options, maxTriggerDelay="0s")
    assert hasty.latestOffset(start, ALL)[topic] == {"0": 11}
    assert hasty.reportLatestOffset()[topic] == {"0": 11}


def test_partitions_that_a_topic_got_later_are_read_from_their_beginning(braid: Braid) -> None:
    topic = braid.new_topic(1, prefix="wider")
    braid.produce(topic, [{"value": "a"}])
    reader = stream_reader(braid, subscribe=topic)
    start = reader.initialOffset()
    braid.add_partitions(topic, 2)
    braid.produce(topic, [{"value": "b", "partition": 1}])
    assert step(reader, start)[1] == [b"b"]
