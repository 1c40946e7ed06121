"""Produce by hand against kio, every version, both directions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.kio_entities import (
    durations_ms,
    encode,
    error_codes,
    i16s,
    i32s,
    i64s,
    milliseconds,
    moment,
    nullable_texts,
    requests,
    responses,
    texts,
    topic_ids,
    topic_uuid,
)

from braidlog.wire.errors import MalformedRequest
from braidlog.wire.nodes import NO_LEADER, CurrentLeader, NodeEndpoint
from braidlog.wire.primitives import string, uvarint
from braidlog.wire.produce import (
    VERSIONS,
    ProducedPartition,
    ProducedTopic,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    RecordError,
    read_produce_request,
    write_produce_response,
    write_single_produced,
)

records = st.none() | st.binary(max_size=40) | st.just(bytes(20_000))
request_values = st.builds(
    ProduceRequest,
    nullable_texts,
    i16s,
    durations_ms,
    st.lists(
        st.builds(ProduceTopic, texts, topic_ids, st.lists(st.builds(ProducePartition, i32s, records), max_size=3)),
        max_size=3,
    ),
)
leaders = st.just(NO_LEADER) | st.builds(CurrentLeader, i32s, i32s)
endpoints = st.builds(NodeEndpoint, i32s, texts, i32s, nullable_texts)
produced_partitions = st.builds(
    ProducedPartition,
    i32s,
    error_codes,
    i64s,
    st.integers(-1, 4_000_000_000_000),
    i64s,
    st.lists(st.builds(RecordError, i32s, nullable_texts), max_size=2),
    nullable_texts,
    leaders,
) | st.builds(lambda index, code: ProducedPartition(index, code, 7), i32s, error_codes)
response_values = st.builds(
    ProduceResponse,
    st.lists(st.builds(ProducedTopic, texts, topic_ids, st.lists(produced_partitions, max_size=3)), max_size=3),
    durations_ms,
    st.lists(endpoints, max_size=2),
)


def kio_request(version: int, request: ProduceRequest) -> bytes:
    new = requests(0, version)
    return encode(
        new(
            "ProduceRequest",
            transactional_id=request.transactional_id,
            acks=request.acks,
            timeout=milliseconds(request.timeout_ms),
            topic_data=tuple(
                new(
                    "TopicProduceData",
                    name=topic.name,
                    topic_id=topic_uuid(topic.topic_id),
                    partition_data=tuple(
                        new("PartitionProduceData", index=partition.partition_index, records=partition.records)
                        for partition in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )
    )


def kio_response(version: int, response: ProduceResponse) -> bytes:
    new = responses(0, version)
    tagged = version >= 10
    return encode(
        new(
            "ProduceResponse",
            responses=tuple(
                new(
                    "TopicProduceResponse",
                    name=topic.name,
                    topic_id=topic_uuid(topic.topic_id),
                    partition_responses=tuple(
                        new(
                            "PartitionProduceResponse",
                            index=partition.partition_index,
                            error_code=partition.error_code,
                            base_offset=partition.base_offset,
                            log_append_time=moment(partition.log_append_time_ms),
                            log_start_offset=partition.log_start_offset,
                            record_errors=tuple(
                                new(
                                    "BatchIndexAndErrorMessage",
                                    batch_index=error.batch_index,
                                    batch_index_error_message=error.message,
                                )
                                for error in (partition.record_errors if version >= 8 else ())
                            ),
                            error_message=partition.error_message,
                            current_leader=new("LeaderIdAndEpoch", **partition.current_leader._asdict())
                            if tagged
                            else None,
                        )
                        for partition in topic.partitions
                    ),
                )
                for topic in response.topics
            ),
            throttle_time=milliseconds(response.throttle_time_ms),
            node_endpoints=tuple(new("NodeEndpoint", **node._asdict()) for node in response.node_endpoints)
            if tagged
            else (),
        )
    )


def as_read(version: int, request: ProduceRequest) -> ProduceRequest:
    """What a reader can know of it: a topic's name or its id."""
    return request._replace(
        topics=[topic._replace(name="") if version >= 13 else topic._replace(topic_id=b"") for topic in request.topics]
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=25, deadline=None)
@given(request_values)
def test_requests_read_as_kio_wrote_them(version: int, request: ProduceRequest) -> None:
    assert read_produce_request(version, memoryview(kio_request(version, request))) == as_read(version, request)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=25, deadline=None)
@given(response_values)
def test_responses_are_the_bytes_that_kio_writes(version: int, response: ProduceResponse) -> None:
    assert write_produce_response(version, response) == kio_response(version, response)


def test_records_are_views_into_the_frame() -> None:
    request = ProduceRequest(None, -1, 30_000, [ProduceTopic("t", b"", [ProducePartition(0, memoryview(b"records"))])])
    for version in (7, 9):
        body = bytearray(kio_request(version, request))
        read = read_produce_request(version, memoryview(body)).topics[0].partitions[0].records
        assert read is not None
        body[body.index(b"records")] = ord("R")
        assert bytes(read) == b"Records"


def test_unknown_tagged_fields_are_passed_over() -> None:
    tag = uvarint(1) + uvarint(300) + uvarint(3) + b"abc"
    body = (
        b"\x00\xff\xff\x00\x00\x75\x30"
        + uvarint(2)
        + string("t", True)
        + uvarint(2)
        + b"\x00\x00\x00\x07"
        + uvarint(4)
        + b"rec"
        + tag * 3
    )
    request = read_produce_request(9, memoryview(body))
    assert request == ProduceRequest(
        None, -1, 30_000, [ProduceTopic("t", b"", [ProducePartition(7, memoryview(b"rec"))])]
    )


START = b"\x00\xff\xff\x00\x00\x75\x30"
OLD_START = b"\xff\xff\xff\xff\x00\x00\x75\x30"


@pytest.mark.parametrize(
    ("version", "body", "message"),
    [
        (9, b"", "ends too early"),
        (9, START, "ends too early"),
        (9, START + b"\x00\x00", "null where an array"),
        (9, START + b"\x7f\x02t\x01\x00", "ends too early"),
        (9, START + b"\xff\xff\xff\xff\x7f\x00", "out of range"),
        (9, START + b"\xff\xff\xff\xff\xff\xff\x00", "more than five bytes"),
        (9, START + b"\x02\x00\x01\x00\x00", "null where a string"),
        (9, START + b"\x02\x02\xff\x01\x00\x00", "not UTF-8"),
        (9, START + b"\x02\x02t\x02\x00\x00\x00\x00\x80\x80\x04rec", "ends too early"),
        (13, START + b"\x02" + bytes(9), "ends too early"),
        (9, START + b"\x02\x02t" + uvarint(20_002) + bytes(6) * 20_001 + bytes(2), "more than 20000 partitions"),
        (7, OLD_START + b"\x00\x00\x4e\x21" + (b"\x00\x01t" + bytes(4)) * 20_001, "more than 20000 partitions"),
        (7, OLD_START + b"\xff\xff\xff\xff", "null where an array"),
        (7, OLD_START + b"\x80\x00\x00\x00", "an array of -2147483648"),
        (7, OLD_START + b"\x7f\xff\xff\xff", "ends too early"),
        (7, OLD_START + b"\x00\x00\x00\x01\xff\xff", "null where a string"),
        (7, OLD_START + b"\x00\x00\x00\x01\xff\xfe", "a string of -2"),
        (7, OLD_START + b"\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xfe", "-2 bytes"),
        (7, OLD_START + b"\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x09abc", "too early"),
    ],
)
def test_malformed_requests(version: int, body: bytes, message: str) -> None:
    with pytest.raises(MalformedRequest, match=message):
        read_produce_request(version, memoryview(body))


def test_bytes_behind_the_request_are_ignored() -> None:
    assert read_produce_request(9, memoryview(START + b"\x01\x00\x00")).topics == []


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("name", ["t", "orders", "x" * 200])
def test_the_single_partition_response_is_the_general_one(version: int, name: str) -> None:
    topic_id = bytes(range(16))
    partition = ProducedPartition(3, 0, 12345678901, 1700000000000, 7)
    general = write_produce_response(version, ProduceResponse([ProducedTopic(name, topic_id, [partition])]))
    assert write_single_produced(version, name, topic_id, 3, 12345678901, 1700000000000, 7) == general
