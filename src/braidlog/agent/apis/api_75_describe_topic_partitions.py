"""DescribeTopicPartitions: topics page by page, for clusters whose Metadata answer would be too long."""

from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.api_03_metadata import REPLICAS_MAX
from braidlog.agent.apis.shared import NO_THROTTLE, TOPIC_OPERATIONS
from braidlog.agent.context import RequestContext
from braidlog.agent.placement import leader_for, zone_of_client
from braidlog.agent.reading import LEADER_EPOCH
from braidlog.agent.view import PartitionView, TopicView

KEY = 75
VERSIONS = range(1)

PARTITIONS_PER_PAGE_MAX = 2000


async def handle(request: Any, context: RequestContext) -> Any:
    view = context.agent.view
    # Pages go by topic name. No topics asks for all.
    names = sorted({str(topic.name) for topic in request.topics} or view.topics_by_name)
    cursor_name, first = "", 0
    if request.cursor is not None:
        cursor_name, first = str(request.cursor.topic_name), max(0, request.cursor.partition_index)
    room = min(max(request.response_partition_limit, 1), PARTITIONS_PER_PAGE_MAX)
    topics: list[Any] = []
    next_cursor = None
    for name in names:
        if name < cursor_name:
            continue
        topic = view.topics_by_name.get(name)
        start = first if name == cursor_name else 0
        if topic is None:
            topics.append(_unknown(name, context))
            continue
        if room == 0:
            next_cursor = context.answer("Cursor", topic_name=name, partition_index=0)
            break
        page = topic.partitions[start : start + room]
        room -= len(page)
        topics.append(_topic(topic, page, context))
        if start + len(page) < len(topic.partitions):
            next_cursor = context.answer("Cursor", topic_name=name, partition_index=start + len(page))
            break
    return context.answer(
        "DescribeTopicPartitionsResponse", throttle_time=NO_THROTTLE, topics=tuple(topics), next_cursor=next_cursor
    )


def _unknown(name: str, context: RequestContext) -> Any:
    return context.answer(
        "DescribeTopicPartitionsResponseTopic",
        error_code=ErrorCode.unknown_topic_or_partition,
        name=name,
        topic_id=None,
        partitions=(),
    )


def _topic(topic: TopicView, page: list[PartitionView], context: RequestContext) -> Any:
    return context.answer(
        "DescribeTopicPartitionsResponseTopic",
        error_code=ErrorCode.none,
        name=topic.info.name,
        topic_id=UUID(bytes=topic.info.topic_id),
        partitions=tuple(_partition(partition, context) for partition in page),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _partition(partition: PartitionView, context: RequestContext) -> Any:
    view = context.agent.view
    leader = leader_for(view, partition, zone_of_client(context.client_id))
    node_ids = sorted(view.agents)
    at = node_ids.index(leader) if leader >= 0 else 0
    replicas = tuple((node_ids[at:] + node_ids[:at])[:REPLICAS_MAX])
    return context.answer(
        "DescribeTopicPartitionsResponsePartition",
        error_code=ErrorCode.none if leader >= 0 else ErrorCode.leader_not_available,
        partition_index=partition.index,
        leader_id=leader,
        leader_epoch=LEADER_EPOCH if leader >= 0 else -1,
        replica_nodes=replicas,
        isr_nodes=replicas,
        # Empty and not null, which Java's admin client does not survive.
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=(),
    )
