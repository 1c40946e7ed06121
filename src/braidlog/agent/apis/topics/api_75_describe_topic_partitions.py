"""DescribeTopicPartitions: lists topics page by page.

It is for clusters whose Metadata answer would be too long.
"""

from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import NO_THROTTLE, topic_operations
from braidlog.agent.apis.topics.services import TopicContext
from braidlog.agent.cluster.placement import places_of, zone_of_client
from braidlog.agent.cluster.view import Place, TopicView
from braidlog.security.acls import DESCRIBE

KEY = 75
VERSIONS = range(1)

PARTITIONS_PER_PAGE_MAX = 2000


async def handle(request: Any, context: TopicContext) -> Any:
    view = context.services.view
    # Pages are ordered by topic name. No topics means all.
    rights = context.rights
    asked = {str(topic.name) for topic in request.topics}
    names = sorted(asked or (name for name in view.topics_by_name if rights.topic(DESCRIBE, name)))
    cursor_name, first = "", 0
    if request.cursor is not None:
        cursor_name, first = str(request.cursor.topic_name), max(0, request.cursor.partition_index)
    room = min(max(request.response_partition_limit, 1), PARTITIONS_PER_PAGE_MAX)
    topics: list[Any] = []
    next_cursor = None
    async for name in context.turns.each(names):
        if name < cursor_name:
            continue
        topic = view.topics_by_name.get(name) if rights.topic(DESCRIBE, name) else None
        start = first if name == cursor_name else 0
        if topic is None:
            topics.append(_unknown(name, context))
            continue
        if room == 0:
            next_cursor = context.answer("Cursor", topic_name=name, partition_index=0)
            break
        page = range(len(topic.partitions))[start : start + room]
        room -= len(page)
        topics.append(await _topic(topic, page, context))
        if page.stop < len(topic.partitions):
            next_cursor = context.answer("Cursor", topic_name=name, partition_index=page.stop)
            break
    return context.answer(
        "DescribeTopicPartitionsResponse", throttle_time=NO_THROTTLE, topics=tuple(topics), next_cursor=next_cursor
    )


def _unknown(name: str, context: TopicContext) -> Any:
    return context.answer(
        "DescribeTopicPartitionsResponseTopic",
        error_code=ErrorCode.unknown_topic_or_partition
        if context.rights.topic(DESCRIBE, name)
        else ErrorCode.topic_authorization_failed,
        name=name,
        topic_id=None,
        partitions=(),
        topic_authorized_operations=topic_operations(context.rights, name, told=True),
    )


async def _topic(topic: TopicView, page: range, context: TopicContext) -> Any:
    places = places_of(context.services.view, topic, zone_of_client(context.client_id))
    return context.answer(
        "DescribeTopicPartitionsResponseTopic",
        error_code=ErrorCode.none,
        name=topic.info.name,
        topic_id=UUID(bytes=topic.info.topic_id),
        is_internal=topic.is_internal,
        partitions=await context.turns.map(
            lambda index: _partition(index, places[index], topic.partitions[index].leader_epoch, context), page
        ),
        topic_authorized_operations=topic_operations(context.rights, topic.info.name, told=True),
    )


def _partition(index: int, place: Place, leader_epoch: int, context: TopicContext) -> Any:
    return context.answer(
        "DescribeTopicPartitionsResponsePartition",
        error_code=ErrorCode.none if place.leader >= 0 else ErrorCode.leader_not_available,
        partition_index=index,
        leader_id=place.leader,
        leader_epoch=leader_epoch if place.leader >= 0 else -1,
        replica_nodes=place.replicas,
        isr_nodes=place.live,
        # Empty and not null: null crashes Java's admin client.
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=place.offline,
    )
