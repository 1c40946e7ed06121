"""AlterReplicaLogDirs: the one "directory", the object store, has everything."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import NO_THROTTLE
from braidlog.agent.apis.topics.services import TopicContext
from braidlog.objects.open import redacted
from braidlog.security.acls import ALTER

KEY = 34
VERSIONS = range(1, 3)


async def handle(request: Any, context: TopicContext) -> Any:
    topics: dict[str, list[Any]] = {}
    for directory in request.dirs:
        async for topic in context.turns.each(directory.topics):
            async for index in context.turns.each(topic.partitions):
                code = _code(directory.path, topic.name, index, context)
                result = context.answer("AlterReplicaLogDirPartitionResult", partition_index=index, error_code=code)
                topics.setdefault(topic.name, []).append(result)
    return context.answer(
        "AlterReplicaLogDirsResponse",
        throttle_time=NO_THROTTLE,
        results=tuple(
            [
                context.answer("AlterReplicaLogDirTopicResult", topic_name=name, partitions=tuple(partitions))
                async for name, partitions in context.turns.each(topics.items())
            ]
        ),
    )


def _code(path: str, topic_name: str, index: int, context: TopicContext) -> ErrorCode:
    if not context.rights.cluster(ALTER):
        return ErrorCode.cluster_authorization_failed
    if path != redacted(context.services.settings.store_url):
        return ErrorCode.log_dir_not_found
    if context.services.view.partition(topic_name, index) is None:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none
