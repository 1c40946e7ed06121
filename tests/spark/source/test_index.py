"""Topics and partitions, selected from a snapshot of the control plane."""

import pytest

from braidlog.control.interface import FeedPosition, PartitionBounds, Snapshot, TopicInfo
from braidlog.spark.errors import JobError
from braidlog.spark.options import Selection
from braidlog.spark.source.index import select_topics, state_of


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
