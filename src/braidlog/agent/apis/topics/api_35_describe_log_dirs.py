"""DescribeLogDirs: the one "directory" is the object store.

Every agent sees all of it, but tools sum over brokers. So only one agent reports each partition: the one that clients
without a zone are told is its leader.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import NO_THROTTLE
from braidlog.agent.apis.topics.services import TopicContext
from braidlog.agent.cluster.placement import leader_for
from braidlog.agent.cluster.view import TopicView
from braidlog.objects.open import redacted
from braidlog.security.acls import DESCRIBE

KEY = 35
VERSIONS = range(1, 5)

UNKNOWN_BYTES = -1
"""An object store has no size to report."""


async def handle(request: Any, context: TopicContext) -> Any:
    view = context.services.view
    if not context.rights.cluster(DESCRIBE):
        code = ErrorCode.cluster_authorization_failed
        return context.answer("DescribeLogDirsResponse", throttle_time=NO_THROTTLE, error_code=code, results=())

    def is_told_here(topic: TopicView, index: int) -> bool:
        return leader_for(view, topic.partitions[index], "") == context.services.session.node_id

    wanted: list[tuple[TopicView, list[int]]] = []
    if request.topics is None:
        wanted = [(topic, list(range(len(topic.partitions)))) for _, topic in sorted(view.topics_by_name.items())]
    else:
        async for asked in context.turns.each(request.topics):
            known = view.topics_by_name.get(asked.topic)
            if known is not None:
                indexes = dict.fromkeys(asked.partitions)
                wanted.append((known, [index for index in indexes if 0 <= index < len(known.partitions)]))
    here = [
        (topic, [index async for index in context.turns.each(indexes) if is_told_here(topic, index)])
        for topic, indexes in wanted
    ]
    return context.answer(
        "DescribeLogDirsResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        results=(
            context.answer(
                "DescribeLogDirsResult",
                error_code=ErrorCode.none,
                log_dir=redacted(context.services.settings.store_url),
                topics=tuple([await _topic(topic, told, context) for topic, told in here if told]),
                total_bytes=UNKNOWN_BYTES,
                usable_bytes=UNKNOWN_BYTES,
            ),
        ),
    )


async def _topic(topic: TopicView, indexes: list[int], context: TopicContext) -> Any:
    return context.answer(
        "DescribeLogDirsTopic",
        name=topic.info.name,
        partitions=await context.turns.map(
            lambda index: context.answer(
                "DescribeLogDirsPartition",
                partition_index=index,
                partition_size=topic.partitions[index].size_bytes,
                offset_lag=0,
                is_future_key=False,
            ),
            indexes,
        ),
    )
