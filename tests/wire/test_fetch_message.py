"""Fetch by hand against kio, every version, both directions."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.kio_entities import (
    durations_ms,
    encode,
    error_codes,
    i32s,
    i64s,
    milliseconds,
    nullable_texts,
    requests,
    responses,
    texts,
    topic_ids,
    topic_uuid,
)

from braidlog.wire.errors import MalformedRequest
from braidlog.wire.fetch import (
    NO_DIVERGENCE,
    NO_SNAPSHOT,
    VERSIONS,
    AbortedTransaction,
    EpochEndOffset,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    SnapshotId,
    in_slices,
    read_fetch_request,
    turning_partitions,
    without_repeats,
    write_fetch_response,
)
from braidlog.wire.nodes import NO_LEADER, CurrentLeader, NodeEndpoint

fetch_partitions = st.builds(FetchPartition, i32s, i64s, i32s, i32s, i32s, i64s)
request_values = st.builds(
    FetchRequest,
    durations_ms,
    i32s,
    i32s,
    st.integers(-128, 127),
    i32s,
    i32s,
    st.lists(st.builds(FetchTopic, texts, topic_ids, st.lists(fetch_partitions, max_size=3)), max_size=3),
    st.lists(st.builds(ForgottenTopic, texts, topic_ids, st.lists(i32s, max_size=3)), max_size=2),
    texts,
    i32s,
    i64s,
    nullable_texts,
)
fetched_partitions = st.builds(
    FetchedPartition,
    i32s,
    error_codes,
    i64s,
    i64s,
    i64s,
    st.none() | st.lists(st.builds(AbortedTransaction, i64s, i64s), max_size=3),
    i32s,
    st.none() | st.lists(st.binary(max_size=200), max_size=3),
    st.just(NO_DIVERGENCE) | st.builds(EpochEndOffset, i32s, i64s),
    st.just(NO_LEADER) | st.builds(CurrentLeader, i32s, i32s),
    st.just(NO_SNAPSHOT) | st.builds(SnapshotId, i64s, i32s),
)
response_values = st.builds(
    FetchResponse,
    st.lists(st.builds(FetchedTopic, texts, topic_ids, st.lists(fetched_partitions, max_size=3)), max_size=3),
    durations_ms,
    error_codes,
    i32s,
    st.lists(st.builds(NodeEndpoint, i32s, texts, i32s, nullable_texts), max_size=2),
)


def kio_request(version: int, request: FetchRequest) -> bytes:
    new = requests(1, version)
    return encode(
        new(
            "FetchRequest",
            cluster_id=request.cluster_id,
            replica_id=request.replica_id,
            replica_state=new("ReplicaState", replica_id=request.replica_id, replica_epoch=request.replica_epoch)
            if version >= 15
            else None,
            max_wait=milliseconds(request.wait_ms_max),
            min_bytes=request.bytes_min,
            max_bytes=request.bytes_max,
            isolation_level=request.isolation_level,
            session_id=request.session_id,
            session_epoch=request.session_epoch,
            topics=tuple(
                new(
                    "FetchTopic",
                    topic=topic.name,
                    topic_id=topic_uuid(topic.topic_id),
                    partitions=tuple(
                        new(
                            "FetchPartition",
                            partition=partition.partition_index,
                            current_leader_epoch=partition.current_leader_epoch,
                            fetch_offset=partition.fetch_offset,
                            last_fetched_epoch=partition.last_fetched_epoch,
                            log_start_offset=partition.log_start_offset,
                            partition_max_bytes=partition.bytes_max,
                            high_watermark=12,
                        )
                        for partition in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
            forgotten_topics_data=tuple(
                new(
                    "ForgottenTopic",
                    topic=topic.name,
                    topic_id=topic_uuid(topic.topic_id),
                    partitions=tuple(topic.partitions),
                )
                for topic in (request.forgotten_topics if version >= 7 else ())
            ),
            rack_id=request.rack_id,
        )
    )


def as_read(version: int, request: FetchRequest) -> FetchRequest:
    """The request with what this version cannot say at its default."""

    def partition(value: FetchPartition) -> FetchPartition:
        if version < 5:
            value = value._replace(log_start_offset=-1)
        if version < 9:
            value = value._replace(current_leader_epoch=-1)
        return value._replace(last_fetched_epoch=-1) if version < 12 else value

    by_id = version >= 13
    name_or_id = {"name": ""} if by_id else {"topic_id": b""}
    request = request._replace(
        topics=[
            topic._replace(**name_or_id, partitions=[partition(value) for value in topic.partitions])
            for topic in request.topics
        ],
        forgotten_topics=[topic._replace(**name_or_id) for topic in request.forgotten_topics],
    )
    if version < 7:
        request = request._replace(session_id=0, session_epoch=-1, forgotten_topics=[])
    if version < 11:
        request = request._replace(rack_id="")
    if version < 12:
        request = request._replace(cluster_id=None)
    return request._replace(replica_epoch=-1) if version < 15 else request


def kio_response(version: int, response: FetchResponse) -> bytes:
    new = responses(1, version)
    tagged = version >= 12

    def partition(value: FetchedPartition) -> object:
        aborted = value.aborted_transactions
        tags = {}
        if tagged:
            tags = {
                "diverging_epoch": new("EpochEndOffset", **value.diverging_epoch._asdict()),
                "current_leader": new("LeaderIdAndEpoch", **value.current_leader._asdict()),
                "snapshot_id": new("SnapshotId", **value.snapshot_id._asdict()),
            }
        return new(
            "PartitionData",
            partition_index=value.partition_index,
            error_code=value.error_code,
            high_watermark=value.high_watermark,
            last_stable_offset=value.last_stable_offset,
            log_start_offset=value.log_start_offset,
            aborted_transactions=None
            if aborted is None
            else tuple(new("AbortedTransaction", **transaction._asdict()) for transaction in aborted),
            preferred_read_replica=value.preferred_read_replica,
            records=None if value.records is None else b"".join(value.records),
            **tags,
        )

    return encode(
        new(
            "FetchResponse",
            throttle_time=milliseconds(response.throttle_time_ms),
            error_code=response.error_code,
            session_id=response.session_id,
            responses=tuple(
                new(
                    "FetchableTopicResponse",
                    topic=topic.name,
                    topic_id=topic_uuid(topic.topic_id),
                    partitions=tuple(map(partition, topic.partitions)),
                )
                for topic in response.topics
            ),
            node_endpoints=tuple(new("NodeEndpoint", **node._asdict()) for node in response.node_endpoints)
            if version >= 16
            else (),
        )
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20, deadline=None)
@given(request_values)
def test_requests_read_as_kio_wrote_them(version: int, request: FetchRequest) -> None:
    if version >= 12 and request.cluster_id is None:
        request = request._replace(cluster_id=None)
    assert read_fetch_request(version, memoryview(kio_request(version, request))) == as_read(version, request)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20, deadline=None)
@given(response_values)
def test_responses_are_the_bytes_that_kio_writes(version: int, response: FetchResponse) -> None:
    assert b"".join(write_fetch_response(version, response)) == kio_response(version, response)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20, deadline=None)
@given(request_values, st.lists(fetch_partitions, min_size=2, max_size=4), st.integers(0, 3), st.booleans())
def test_partitions_that_may_turn_are_where_it_is_told(
    version: int, request: FetchRequest, partitions: list[FetchPartition], turns: int, is_plain: bool
) -> None:
    if is_plain:
        topics = [FetchTopic("", bytes(range(16)), partitions)]
        request = request._replace(topics=topics, forgotten_topics=[], rack_id="")
        request = request._replace(cluster_id=None, replica_id=-1, replica_epoch=-1)
    body = kio_request(version, request)
    read = read_fetch_request(version, memoryview(body))
    turning = turning_partitions(version, memoryview(body), read)
    if is_plain and version < 18:  # for which kio writes a tag that only brokers have a use for
        assert (turning is not None) == (version >= 15)
    if turning is not None:
        [topic] = read.topics
        turns %= len(topic.partitions)
        start, first, end = turning.start, turning[turns], turning.stop
        turned = body[:start] + body[first:end] + body[start:first] + body[end:]
        in_turn = topic._replace(partitions=topic.partitions[turns:] + topic.partitions[:turns])
        assert read_fetch_request(version, memoryview(turned)) == read._replace(topics=[in_turn])


def test_record_buffers_are_passed_on_as_they_are() -> None:
    head, body = b"head", memoryview(bytes(1000))
    partition = FetchedPartition(0, records=[head, body])
    buffers = write_fetch_response(16, FetchResponse([FetchedTopic("", bytes(16), [partition])]))
    assert any(buffer is head for buffer in buffers)
    assert any(buffer is body for buffer in buffers)


@pytest.mark.parametrize(
    ("version", "body", "message"),
    [
        (4, b"", "ends too early"),
        (4, bytes(17) + b"\xff\xff\xff\xff", "null where an array"),
        (4, bytes(17) + b"\x7f\xff\xff\xff", "ends too early"),
        (11, bytes(25) + bytes(4) + bytes(4) + b"\xff\xff", "null where a string"),
        (12, bytes(25) + b"\x00", "null where an array"),
        (12, bytes(25) + b"\x01\x01\x01", "ends too early"),
        (12, bytes(25) + b"\x01\x01\x01\x01\x00\x09a", "ends too early"),
        (15, bytes(21) + b"\x01\x01\x01\x01\x01\x02ab", "ends too early"),
        (18, bytes(21) + b"\x02" + bytes(15), "ends too early"),
        (18, bytes(21) + b"\x01\x02" + bytes(16) + b"\xff\xff\xff\xff\x01", "ends too early"),
    ],
)
def test_malformed_requests(version: int, body: bytes, message: str) -> None:
    with pytest.raises(MalformedRequest, match=message):
        read_fetch_request(version, memoryview(body))


def test_bytes_behind_the_request_are_ignored() -> None:
    request = read_fetch_request(11, memoryview(bytes(25) + bytes(4) + bytes(4) + b"\x00\x00\x00"))
    assert (request.topics, request.rack_id) == ([], "")


def _partitions(count: int) -> bytes:
    return struct.pack(">i", count) + struct.pack(">iqi", 0, 0, 1) * count


def test_a_request_has_so_many_elements_at_the_most() -> None:
    topic = b"\x00\x01t"
    request = bytes(17) + struct.pack(">i", 2) + topic + _partitions(100_000) + topic + _partitions(100_001)
    with pytest.raises(MalformedRequest, match="more than 200000 elements"):
        read_fetch_request(4, memoryview(request))


def fetch_topic(name: str, *partitions: tuple[int, int]) -> FetchTopic:
    return FetchTopic(name, b"", [FetchPartition(index, offset, 1) for index, offset in partitions])


def test_a_partition_that_is_named_repeatedly_is_meant_once_and_as_it_was_named_last() -> None:
    request = read_fetch_request(4, memoryview(bytes(21)))._replace(
        topics=[fetch_topic("a", (0, 1), (1, 1), (0, 2)), fetch_topic("b", (0, 7)), fetch_topic("a", (2, 3), (1, 9))]
    )
    assert without_repeats(request).topics == [fetch_topic("a", (0, 2), (1, 9), (2, 3)), fetch_topic("b", (0, 7))]


def test_slices_have_every_partition_in_its_order() -> None:
    topics = [fetch_topic("a", *((index, 0) for index in range(5))), fetch_topic("b", (0, 0)), fetch_topic("c", (1, 0))]
    parts = list(in_slices(topics, 2))
    assert [sum(len(topic.partitions) for topic in part) for part in parts] == [2, 2, 2, 1]
    found = [(topic.name, each) for part in parts for topic in part for each in topic.partitions]
    assert found == [(topic.name, each) for topic in topics for each in topic.partitions]
