"""DescribeLogDirs: the one "directory" is the object store.

Every agent sees all of it, but tools sum over brokers: so each partition is told by one agent, the one that clients
without a zone take for its leader.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import NO_THROTTLE
from braidlog.agent.context import RequestContext
from braidlog.agent.placement import leader_for
from braidlog.agent.view import TopicView

KEY = 35
VERSIONS = range(1, 5)

UNKNOWN_BYTES = -1
"""An object store has no size that could be told."""


async def handle(request: Any, context: RequestContext) -> Any:
    view = context.agent.view

    def is_told_here(topic: TopicView, index: int) -> bool:
        return leader_for(view, topic.partitions[index], "") == context.agent.node_id

    wanted: list[tuple[TopicView, list[int]]] = []
    if request.topics is None:
        wanted = [(topic, list(range(len(topic.partitions)))) for _, topic in sorted(view.topics_by_name.items())]
    else:
        for asked in request.topics:
            known = view.topics_by_name.get(asked.topic)
            if known is not None:
                wanted.append((known, [index for index in asked.partitions if 0 <= index < len(known.partitions)]))
    here = [(topic, [index for index in indexes if is_told_here(topic, index)]) for topic, indexes in wanted]
    return context.answer(
        "DescribeLogDirsResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        results=(
            context.answer(
                "DescribeLogDirsResult",
                error_code=ErrorCode.none,
                log_dir=context.agent.settings.store_url,
                topics=tuple(_topic(topic, told, context) for topic, told in here if told),
                total_bytes=UNKNOWN_BYTES,
                usable_bytes=UNKNOWN_BYTES,
            ),
        ),
    )


def _topic(topic: TopicView, indexes: list[int], context: RequestContext) -> Any:
    return context.answer(
        "DescribeLogDirsTopic",
        name=topic.info.name,
        partitions=tuple(
            context.answer(
                "DescribeLogDirsPartition",
                partition_index=index,
                partition_size=topic.partitions[index].size_bytes,
                offset_lag=0,
                is_future_key=False,
            )
            for index in indexes
        ),
    )
