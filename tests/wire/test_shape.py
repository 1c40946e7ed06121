"""Cold requests: what is well formed passes the check of its shape and is read back as it was."""

import pytest
from tests.wire.kio_entities import encode, milliseconds, requests, topic_uuid

from braidlog.wire.errors import MalformedRequest
from braidlog.wire.messages import read_request


@pytest.mark.parametrize("version", range(2, 11))
def test_nested_arrays_and_nulls_are_read_back(version: int) -> None:
    new = requests(8, version)
    partitions = tuple(
        new(
            "OffsetCommitRequestPartition",
            partition_index=index,
            committed_offset=5,
            committed_leader_epoch=-1,
            committed_metadata=metadata,
        )
        for index, metadata in enumerate((None, "", "x" * 200))
    )
    topic = new("OffsetCommitRequestTopic", name="t", topic_id=topic_uuid(b"t" * 16), partitions=partitions)
    entity = new(
        "OffsetCommitRequest",
        group_id="g",
        generation_id_or_member_epoch=1,
        member_id="m",
        group_instance_id=None,
        topics=(topic, topic),
    )
    body = encode(entity)
    assert encode(read_request(8, version, body)) == body
    assert encode(read_request(8, version, body + b"more")) == body, "Kafka ignores what follows, too"
    for end in range(len(body)):
        with pytest.raises(MalformedRequest):
            read_request(8, version, body[:end])


def test_tagged_fields_are_walked_and_null_structs_are_passed() -> None:
    new = requests(1, 18)
    state = new("ReplicaState", replica_id=3, replica_epoch=4)
    entity = new(
        "FetchRequest", cluster_id="c", replica_state=state, max_wait=milliseconds(500), min_bytes=1, topics=(),
        forgotten_topics_data=(),
    )  # fmt: skip
    assert read_request(1, 18, encode(entity)).replica_state == state
    cursor = requests(75, 0)
    for value in (None, cursor("Cursor", topic_name="t", partition_index=1)):
        request = cursor("DescribeTopicPartitionsRequest", topics=(), response_partition_limit=5, cursor=value)
        assert read_request(75, 0, encode(request)).cursor == value
