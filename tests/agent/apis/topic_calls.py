"""Calls that tests of several subjects make: topics with configs and records."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta
from tests.agent.apis.api_caller import ApiCaller, Part, part

from braidlog.control.interface import CommitObject, SnapshotRequest
from braidlog.objects.keys import data_key
from braidlog.objects.layout import KAFKA_BATCHES, BatchEntry, ExtentEntry, Footer

CREATE = 19
ALTER_CONFIGS, INCREMENTAL = 33, 44
SET = 0
TIMEOUT = i32Timedelta.parse(timedelta(seconds=30))
INCARNATION = "00112233445566778899aabbccddeeff"


def topic(name: str, partitions: int = 1, factor: int = 1, assignments: Any = (), **configs: str | None) -> Part:
    return part(
        "CreatableTopic",
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            part("CreatableReplicaAssignment", partition_index=index, broker_ids=brokers)
            for index, brokers in assignments
        ],
        configs=[
            part("CreatableTopicConfig", name=key.replace("_", "."), value=value) for key, value in configs.items()
        ],
    )


async def create(call: ApiCaller, *topics: Part, validate_only: bool = False, timeout: Any = TIMEOUT) -> list[Any]:
    request = part("CreateTopicsRequest", topics=topics, timeout=timeout, validate_only=validate_only)
    return list((await call(CREATE, request)).topics)


async def alter(
    call: ApiCaller, key: int, kind: int, name: str, changes: list[tuple[str, int, str | None]], validate: bool = False
) -> list[Any]:
    configs = [part("AlterableConfig", name=each, config_operation=op, value=value) for each, op, value in changes]
    resource = part("AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs)
    class_name = "AlterConfigsRequest" if key == ALTER_CONFIGS else "IncrementalAlterConfigsRequest"
    response = await call(key, part(class_name, resources=[resource], validate_only=validate))
    assert [(each.resource_type, each.resource_name) for each in response.responses] == [(kind, name)]
    return list(response.responses)


async def alter_cluster(call: ApiCaller, configs: dict[str, str]) -> None:
    [outcome] = await alter(call, INCREMENTAL, 4, "", [(name, SET, value) for name, value in configs.items()])
    assert outcome.error_code is ErrorCode.none, outcome.error_message


async def append(agent: SimpleNamespace, topic_name: str, records: int) -> None:
    """Sequence an object with one batch, and let the view know."""
    batch = BatchEntry(100, records, 0, 1)
    extent = ExtentEntry(
        agent.view.topics_by_name[topic_name].info.topic_id, 0, 0, 100, records, 1, 1, KAFKA_BATCHES, [batch]
    )
    nonce = agent.entropy.token(16)
    footer = Footer(nonce, agent.write_epoch, INCARNATION, 1, "zone-a", [extent])
    verdict = await agent.control.commit_object(
        CommitObject(data_key(agent.write_epoch, INCARNATION, 1), 400, msgspec.msgpack.encode(footer))
    )
    assert verdict.error_code == 0
    assert verdict.extents[0].verdicts[0].error_code == 0
    agent.view.load(await agent.control.snapshot(SnapshotRequest()))
