"""Metadata and ApiVersions by hand against kio, every version, both directions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from tests.wire.kio_entities import (
    durations_ms,
    encode,
    error_codes,
    i16s,
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

from braidlog.wire import api_versions, metadata
from braidlog.wire.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeature,
    SupportedFeature,
    api_keys_of,
    write_api_versions_response,
)
from braidlog.wire.errors import MalformedRequest
from braidlog.wire.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    MetadataTopicRequest,
    MetadataWriter,
    read_metadata_request,
)


def write_metadata_response(version: int, response: MetadataResponse) -> bytes:
    """Write the body of a response in one go."""
    writer = MetadataWriter(version)
    parts = [writer.head(response, len(response.topics))]
    for topic in response.topics:
        parts += (writer.topic_head(topic, len(topic.partitions)), writer.partitions(topic.partitions))
        parts.append(writer.topic_tail(topic.authorized_operations))
    parts.append(writer.tail(response))
    return b"".join(parts)


request_values = st.builds(
    MetadataRequest,
    st.none() | st.lists(st.builds(MetadataTopicRequest, nullable_texts, topic_ids), max_size=4),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
nodes = st.lists(i32s, max_size=3).map(tuple)
partitions = st.builds(MetadataPartition, i32s, i32s, nodes, nodes, nodes, i32s, error_codes)
response_values = st.builds(
    MetadataResponse,
    st.lists(st.builds(MetadataBroker, i32s, texts, i32s, nullable_texts), max_size=3),
    st.lists(
        st.builds(
            MetadataTopic,
            nullable_texts,
            topic_ids,
            st.lists(partitions, max_size=3),
            error_codes,
            st.booleans(),
            i32s,
        ),
        max_size=3,
    ),
    nullable_texts,
    i32s,
    durations_ms,
    i32s,
    error_codes,
)


@pytest.mark.parametrize("version", metadata.VERSIONS)
@settings(max_examples=20, deadline=None)
@given(request_values)
def test_metadata_requests_read_as_kio_wrote_them(version: int, request: MetadataRequest) -> None:
    if request.topics is not None and version < 10:
        topics = [MetadataTopicRequest(topic.name or "") for topic in request.topics]
        request = request._replace(topics=topics)
    if version == 0 and request.topics is None:
        request = request._replace(topics=[])
    new = requests(3, version)
    body = encode(
        new(
            "MetadataRequest",
            topics=None
            if request.topics is None
            else tuple(
                new("MetadataRequestTopic", name=topic.name, topic_id=topic_uuid(topic.topic_id))
                for topic in request.topics
            ),
            allow_auto_topic_creation=request.allow_auto_topic_creation,
            include_cluster_authorized_operations=request.include_cluster_authorized_operations,
            include_topic_authorized_operations=request.include_topic_authorized_operations,
        )
    )
    if version == 0:
        request = request._replace(topics=request.topics or None)
    if version < 4:
        request = request._replace(allow_auto_topic_creation=True)
    if version < 8 or version > 10:
        request = request._replace(include_cluster_authorized_operations=False)
    if version < 8:
        request = request._replace(include_topic_authorized_operations=False)
    assert read_metadata_request(version, memoryview(body)) == request


@pytest.mark.parametrize("version", metadata.VERSIONS)
@settings(max_examples=20, deadline=None)
@given(response_values)
def test_metadata_responses_are_the_bytes_that_kio_writes(version: int, response: MetadataResponse) -> None:
    new = responses(3, version)
    expected = encode(
        new(
            "MetadataResponse",
            throttle_time=milliseconds(response.throttle_time_ms),
            brokers=tuple(new("MetadataResponseBroker", **broker._asdict()) for broker in response.brokers),
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            topics=tuple(
                new(
                    "MetadataResponseTopic",
                    error_code=topic.error_code,
                    name=topic.name if version >= 12 else topic.name or "",
                    topic_id=topic_uuid(topic.topic_id),
                    is_internal=topic.is_internal,
                    partitions=tuple(
                        new(
                            "MetadataResponsePartition",
                            error_code=partition.error_code,
                            partition_index=partition.partition_index,
                            leader_id=partition.leader_id,
                            leader_epoch=partition.leader_epoch,
                            replica_nodes=partition.replica_nodes,
                            isr_nodes=partition.isr_nodes,
                            offline_replicas=partition.offline_replicas,
                        )
                        for partition in topic.partitions
                    ),
                    topic_authorized_operations=topic.authorized_operations,
                )
                for topic in response.topics
            ),
            cluster_authorized_operations=response.cluster_authorized_operations,
            error_code=response.error_code,
        )
    )
    assert write_metadata_response(version, response) == expected


@pytest.mark.parametrize(
    ("version", "body", "message"),
    [
        (0, b"", "ends too early"),
        (0, b"\xff\xff\xff\xff", "null where an array"),
        (1, b"\xff\xff\xff\xfe", "an array of -2"),
        (1, b"\x00\x00\x00\x01\xff\xff", "null where a string"),
        (4, b"\xff\xff\xff\xff", "ends too early"),
        (9, b"\x00\x01\x00\x00\x01", "ends too early"),
        (12, b"\x02" + bytes(8), "ends too early"),
    ],
)
def test_malformed_metadata_requests(version: int, body: bytes, message: str) -> None:
    with pytest.raises(MalformedRequest, match=message):
        read_metadata_request(version, memoryview(body))


def test_bytes_behind_a_metadata_request_are_ignored() -> None:
    assert read_metadata_request(9, memoryview(b"\x00\x01\x00\x00\x00\x00\x00\x00")) == MetadataRequest(None)


features = st.builds(SupportedFeature, texts, i16s, i16s)
api_responses = st.builds(
    ApiVersionsResponse,
    st.lists(st.builds(ApiVersion, i16s, i16s, i16s), max_size=4),
    error_codes,
    durations_ms,
    st.lists(features, max_size=2),
    i64s | st.just(-1),
    st.lists(st.builds(FinalizedFeature, texts, i16s, i16s), max_size=2),
)


def kio_api_versions(version: int, response: ApiVersionsResponse) -> bytes:
    new = responses(18, version)
    flexible = version >= 3
    return encode(
        new(
            "ApiVersionsResponse",
            error_code=response.error_code,
            api_keys=tuple(
                new("ApiVersion", api_key=api.api_key, min_version=api.version_min, max_version=api.version_max)
                for api in response.api_keys
            ),
            throttle_time=milliseconds(response.throttle_time_ms),
            supported_features=tuple(
                new("SupportedFeatureKey", name=name, min_version=low, max_version=high)
                for name, low, high in (response.supported_features if flexible else ())
                if version >= 4 or low > 0
            ),
            finalized_features_epoch=response.finalized_features_epoch,
            finalized_features=tuple(
                new("FinalizedFeatureKey", name=name, max_version_level=high, min_version_level=low)
                for name, high, low in (response.finalized_features if flexible else ())
            ),
        )
    )


@pytest.mark.parametrize("version", api_versions.VERSIONS)
@settings(max_examples=20, deadline=None)
@given(api_responses)
def test_api_versions_responses_are_the_bytes_that_kio_writes(version: int, response: ApiVersionsResponse) -> None:
    assert write_api_versions_response(version, response) == kio_api_versions(version, response)


@pytest.mark.parametrize("version", [5, 99, -1])
def test_an_unknown_version_is_answered_in_version_0_with_an_error(version: int) -> None:
    response = ApiVersionsResponse(api_keys_of({18: range(5), 0: range(14)}))
    expected = kio_api_versions(0, response._replace(error_code=ErrorCode.unsupported_version))
    assert write_api_versions_response(version, response) == expected
    assert response.api_keys == [ApiVersion(0, 0, 13), ApiVersion(18, 0, 4)]
