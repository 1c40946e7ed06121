"""Metadata: which topics there are and whom to ask for them."""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import VIEW_WAIT_S_MAX, wait_until_visible
from braidlog.agent.placement import leader_for, zone_of_client
from braidlog.agent.reading import LEADER_EPOCH
from braidlog.agent.view import TopicView
from braidlog.control.interface import CreateTopics, NewTopic
from braidlog.control.topic_config import effective_cluster_settings
from braidlog.runtime.errors import BraidError
from braidlog.wire.header import RequestHeader
from braidlog.wire.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    read_metadata_request,
    write_metadata_response,
)
from braidlog.wire.primitives import NO_TOPIC_ID

if TYPE_CHECKING:
    from braidlog.agent.agent import Agent

KEY = 3
VERSIONS = range(14)

REPLICAS_MAX = 3
"""How many agents a partition lists as its replicas: enough for clients that look for a second one."""


async def handle(agent: "Agent", header: RequestHeader, body: memoryview) -> bytes:
    request = read_metadata_request(header.api_version, body)
    missing = await _create_missing(agent, request) if request.topics else {}
    response = _response(agent, request, missing, zone_of_client(header.client_id))
    return write_metadata_response(header.api_version, response)


def _response(agent: "Agent", request: MetadataRequest, missing: dict[str, int], zone: str) -> MetadataResponse:
    view = agent.view
    brokers = [MetadataBroker(info.node_id, info.host, info.port, info.zone or None) for info in view.agents.values()]
    node_ids = sorted(view.agents)
    topics: list[MetadataTopic] = []
    if request.topics is None:
        topics = [_describe(agent, topic, node_ids, zone) for topic in view.topics_by_name.values()]
    else:
        for name, topic_id in request.topics:
            by_id = topic_id != NO_TOPIC_ID and not name
            topic = view.topics_by_id.get(topic_id) if by_id else view.topics_by_name.get(name or "")
            if topic is not None:
                topics.append(_describe(agent, topic, node_ids, zone))
            elif by_id:
                topics.append(MetadataTopic(None, topic_id, error_code=ErrorCode.unknown_topic_id))
            else:
                code = missing.get(name or "", ErrorCode.unknown_topic_or_partition)
                topics.append(MetadataTopic(name, error_code=code))
    return MetadataResponse(brokers, topics, view.cluster_id, view.controller_id)


def _describe(agent: "Agent", topic: TopicView, node_ids: list[int], zone: str) -> MetadataTopic:
    partitions: list[MetadataPartition] = []
    for partition in topic.partitions:
        leader = leader_for(agent.view, partition, zone)
        if leader < 0:
            partitions.append(
                MetadataPartition(partition.index, -1, error_code=ErrorCode.leader_not_available, leader_epoch=-1)
            )
            continue
        at = node_ids.index(leader)
        replicas = tuple((node_ids[at:] + node_ids[:at])[:REPLICAS_MAX])
        partitions.append(MetadataPartition(partition.index, leader, replicas, replicas, leader_epoch=LEADER_EPOCH))
    return MetadataTopic(topic.info.name, topic.info.topic_id, partitions)


async def _create_missing(agent: "Agent", request: MetadataRequest) -> dict[str, int]:
    """Create the topics that were asked for by name and are not there, if that is wanted; else say what is wrong."""
    names = [name for name, _ in request.topics or [] if name and name not in agent.view.topics_by_name]
    if not names:
        return {}
    cluster = effective_cluster_settings(agent.view.cluster_configs)
    wanted = request.allow_auto_topic_creation and agent.settings.auto_create_topics_enable
    create = CreateTopics(
        [NewTopic(name, -1) for name in dict.fromkeys(names)],
        validate_only=not (wanted and cluster.auto_create_topics_enable),
    )
    try:
        answer = await agent.control.create_topics(create, timeout_s=agent.settings.commit_timeout_ms / 1000)
    except BraidError:
        return dict.fromkeys(names, int(ErrorCode.leader_not_available))
    created = [outcome.name for outcome in answer.outcomes if outcome.error_code != ErrorCode.invalid_topic_exception]
    codes = {outcome.name: outcome.error_code for outcome in answer.outcomes if outcome.name not in created}
    if create.validate_only:
        return codes
    view = agent.view
    await wait_until_visible(view, lambda: all(name in view.topics_by_name for name in created), VIEW_WAIT_S_MAX)
    return codes | {name: int(ErrorCode.leader_not_available) for name in created if name not in view.topics_by_name}
