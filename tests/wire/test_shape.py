"""Cold requests: what is well formed passes the check of its shape and is read back as it was."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, get_args, get_origin

import pytest
from kio.index import load_request_schema
from tests.wire.kio_entities import encode, milliseconds, requests, topic_uuid

from braidlog.agent.apis.registry import COLD_APIS
from braidlog.wire.errors import MalformedRequest
from braidlog.wire.messages import read_request
from braidlog.wire.shape import FIXED_BYTES


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


def _plain(entity_type: Any, null: str, path: str = "") -> bytes:
    """An entity with one element in each array and zeros elsewhere, and null for the field at the path `null`."""
    flexible = entity_type.__flexible__
    parts = [
        _plain_field(field, flexible, null, f"{path}.{field.name}")
        for field in fields(entity_type)
        if "tag" not in field.metadata
    ]
    return b"".join(parts) + (b"\x00" if flexible else b"")


def _plain_field(field: Any, flexible: bool, null: str, path: str) -> bytes:
    options = [each for each in get_args(field.type) if each is not NoneType] if is_nullable(field) else [field.type]
    kind = options[0]
    is_array = get_origin(kind) is tuple
    if is_array:
        kind = get_args(kind)[0]
    kafka_type = field.metadata.get("kafka_type")
    if path == null and (is_array or kafka_type in ("string", "bytes")):
        short = kafka_type == "string" and not is_array
        return b"\x00" if flexible else (b"\xff\xff" if short else b"\xff\xff\xff\xff")
    if is_dataclass(kind):
        marker = b"\x01" if is_nullable(field) and not is_array else b""
        single = marker + _plain(kind, null, path)
    elif kafka_type == "string":
        single = b"\x01" if flexible else b"\x00\x00"
    elif kafka_type == "bytes":
        single = b"\x01" if flexible else bytes(4)
    else:
        single = bytes(FIXED_BYTES[kafka_type])
    return (b"\x02" if flexible else bytes([0, 0, 0, 1])) + single if is_array else single


def is_nullable(field: Any) -> bool:
    return NoneType in get_args(field.type)


def _paths_that_hold_something(entity_type: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that may not be null, though a null could be written."""
    for field in fields(entity_type):
        if "tag" in field.metadata:
            continue
        where = f"{path}.{field.name}"
        kinds = [each for each in (field.type, *get_args(field.type)) if each is not NoneType]
        arrays = [each for each in kinds if get_origin(each) is tuple]
        if not is_nullable(field) and (arrays or field.metadata.get("kafka_type") in ("string", "bytes")):
            yield where
        for kind in (*kinds, *(each for array in arrays for each in get_args(array))):
            if isinstance(kind, type) and is_dataclass(kind):
                yield from _paths_that_hold_something(kind, where)


@pytest.mark.parametrize("api_key", COLD_APIS)
def test_null_is_taken_only_where_it_may_be(api_key: int) -> None:
    for version in COLD_APIS[api_key].versions:
        schema: Any = load_request_schema(api_key, version)
        read_request(api_key, version, _plain(schema, null=""))
        for path in _paths_that_hold_something(schema):
            with pytest.raises(MalformedRequest, match="null where"):
                read_request(api_key, version, _plain(schema, null=path))
