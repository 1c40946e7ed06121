"""Rows on their way to topics and partitions."""

import pyarrow as pa
import pytest

from braidlog.configs.topic import effective_settings
from braidlog.spark.errors import JobError
from braidlog.spark.sink.partitioner import partition_of
from braidlog.spark.sink.routing import Router, Topic


def topic_with(name: str = "t", partitions: int = 4, **configs: str) -> Topic:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    return Topic(name, name.encode().ljust(16, b"-"), partitions, effective_settings(named, {}))


def test_rows_find_their_partition_and_keep_their_order() -> None:
    topics = {"a": topic_with("a", 3), "b": topic_with("b", 2)}
    rows = pa.record_batch(
        {
            "topic": ["a", "b", "a", "b", "a", "a"],
            "partition": pa.array([2, None, 0, 1, 2, None], pa.int32()),
            "key": ["k0", "k1", "k2", "k3", "k4", "k5"],
            "value": ["v0", "v1", "v2", "v3", "v4", "v5"],
            "ignored": [1, 2, 3, 4, 5, 6],
        }
    )
    router = Router(topics.__getitem__, topic="", turn=0)
    found = {(topic.name, partition): part.column("value").to_pylist() for topic, partition, part in router.split(rows)}
    expected: dict[tuple[str, int], list[str]] = {}
    for i, (name, given_partition) in enumerate([("a", 2), ("b", None), ("a", 0), ("b", 1), ("a", 2), ("a", None)]):
        chosen = partition_of(f"k{i}".encode(), topics[name].partition_count)
        expected.setdefault((name, chosen if given_partition is None else given_partition), []).append(f"v{i}")
    assert found == expected
    with pytest.raises(JobError, match="partition 3"):
        list(router.split(pa.record_batch({"topic": ["a"], "partition": pa.array([3], pa.int32()), "value": ["v"]})))
    with pytest.raises(JobError, match="no topic"):
        list(router.split(pa.record_batch({"topic": pa.array([None], pa.string()), "value": ["v"]})))


def test_rows_without_keys_go_on_where_the_last_batch_ended() -> None:
    topic = topic_with(partitions=3)
    router = Router(lambda _: topic, topic="t", turn=1)
    places = [partition for _ in range(4) for _, partition, _ in router.split(pa.record_batch({"value": ["v"]}))]
    assert places == [1, 2, 0, 1]
