"""OffsetFetch: reads the committed offsets of groups.

It reads one group, from version 8 on several, and from version 10 on with topic ids.

A group or a partition that nothing was committed for has the offset -1 and no error.
"""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.shared import (
    CONTROL_FAILURES,
    GROUP_CALL_TIMEOUT_S,
    NO_THROTTLE,
    is_denied,
    topic_of,
)
from braidlog.control.interface import CommittedOffset, FetchOffsets, FetchOffsetsAnswer
from braidlog.security.acls import DESCRIBE

KEY = 9
VERSIONS = range(1, 11)

_LOOK_FOR_COORDINATOR = {ErrorCode.coordinator_not_available, ErrorCode.not_coordinator}
_ASK_AGAIN = FetchOffsetsAnswer(ErrorCode.coordinator_load_in_progress, [])
"""Not the code for "look for the coordinator": after finding it, librdkafka would not ask again, and its consumer would
wait for these partitions for ever."""

_ByTopic = list[tuple[Any, list[tuple[int, CommittedOffset, ErrorCode]]]]
"""Each topic, with whatever identifies it in the answer, and its partitions."""


async def handle(request: Any, context: GroupContext) -> Any:
    if context.version >= 8:
        return context.answer(
            "OffsetFetchResponse",
            throttle_time=NO_THROTTLE,
            groups=tuple(
                [await _group(group, request.require_stable, context) for group in dict.fromkeys(request.groups)]
            ),
        )
    stable = getattr(request, "require_stable", False)
    code, topics = await _fetch(str(request.group_id), request.topics, stable, context)
    return context.answer(
        "OffsetFetchResponse",
        throttle_time=NO_THROTTLE,
        error_code=code,
        topics=await _topics(topics, "OffsetFetchResponseTopic", "OffsetFetchResponsePartition", context),
    )


async def _group(group: Any, require_stable: bool, context: GroupContext) -> Any:
    member_id, member_epoch = getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
    code, topics = await _fetch(str(group.group_id), group.topics, require_stable, context, member_id, member_epoch)
    return context.answer(
        "OffsetFetchResponseGroup",
        group_id=group.group_id,
        error_code=code,
        topics=await _topics(topics, "OffsetFetchResponseTopics", "OffsetFetchResponsePartitions", context),
    )


async def _topics(topics: _ByTopic, topic_class: str, partition_class: str, context: GroupContext) -> tuple[Any, ...]:
    return tuple(
        [
            context.answer(
                topic_class,
                **identity,
                partitions=tuple(
                    [
                        context.answer(
                            partition_class,
                            partition_index=index,
                            committed_offset=committed.offset,
                            committed_leader_epoch=committed.leader_epoch,
                            metadata=committed.metadata,
                            error_code=code,
                        )
                        async for index, committed, code in context.turns.each(partitions)
                    ]
                ),
            )
            for identity, partitions in topics
        ]
    )


async def _fetch(
    group_id: str,
    topics: Iterable[Any] | None,
    require_stable: bool,
    context: GroupContext,
    member_id: str | None = None,
    member_epoch: int = -1,
) -> tuple[ErrorCode, _ByTopic]:
    rights = context.rights
    if not rights.group(DESCRIBE, group_id):
        if context.version >= 2:
            return ErrorCode.group_authorization_failed, []
        return ErrorCode.none, _denied(topics or (), context, ErrorCode.group_authorization_failed)
    if topics is None:
        answer = await _ask(FetchOffsets(group_id, None, require_stable, member_id, member_epoch), context)
        return ErrorCode(answer.error_code), _all_topics(answer, context)
    view = context.services.view
    partitions: list[tuple[bytes, int]] = []
    async for topic in context.turns.each(topics):
        if (known := topic_of(view, topic)) is not None and rights.topic(DESCRIBE, known.info.name):
            partitions += [(known.info.topic_id, index) for index in topic.partition_indexes]
    # Asked even without partitions: the answer also has the group's error code.
    asked = FetchOffsets(group_id, partitions, require_stable, member_id, member_epoch)
    answer = await _ask(asked, context)
    found = {(committed.topic_id, committed.partition): committed for committed in answer.offsets}
    code = ErrorCode(answer.error_code)
    # Version 1 has no error code for the group itself.
    every_code = code if context.version < 2 else ErrorCode.none
    result: _ByTopic = []
    async for topic in context.turns.each(topics):
        known = topic_of(view, topic)
        if is_denied(rights, DESCRIBE, topic, known):
            result += _denied([topic], context, ErrorCode.topic_authorization_failed)
            continue
        topic_id = known.info.topic_id if known is not None else b""
        by_id = context.version >= 10
        topic_code = ErrorCode.unknown_topic_id if known is None and by_id else every_code
        nothing = CommittedOffset(topic_id, -1, -1, -1, "")
        result.append(
            (
                _identity(topic, context),
                [
                    (index, committed, ErrorCode(committed.error_code) or topic_code)
                    for index in topic.partition_indexes
                    for committed in (found.get((topic_id, index), nothing),)
                ],
            )
        )
    return code, result if not code or context.version < 2 else []


def _identity(topic: Any, context: GroupContext) -> dict[str, Any]:
    return {"topic_id": topic.topic_id} if context.version >= 10 else {"name": topic.name}


def _denied(topics: Iterable[Any], context: GroupContext, code: ErrorCode) -> _ByTopic:
    nothing = CommittedOffset(b"", -1, -1, -1, "")
    return [
        (_identity(topic, context), [(index, nothing, code) for index in topic.partition_indexes]) for topic in topics
    ]


def _all_topics(answer: FetchOffsetsAnswer, context: GroupContext) -> _ByTopic:
    """The group's offsets by topic.

    Topics that this agent does not know, or that the client may not see, are left out.
    """
    view = context.services.view
    by_topic: dict[bytes, list[tuple[int, CommittedOffset, ErrorCode]]] = {}
    for committed in answer.offsets:
        topic = view.topics_by_id.get(committed.topic_id)
        if topic is not None and context.rights.topic(DESCRIBE, topic.info.name):
            code = ErrorCode(committed.error_code)
            by_topic.setdefault(committed.topic_id, []).append((committed.partition, committed, code))
    return [
        (
            {"topic_id": UUID(bytes=topic_id)}
            if context.version >= 10
            else {"name": view.topics_by_id[topic_id].info.name},
            partitions,
        )
        for topic_id, partitions in by_topic.items()
    ]


async def _ask(fetch: FetchOffsets, context: GroupContext) -> FetchOffsetsAnswer:
    try:
        answer = await context.services.control.fetch_offsets(fetch, timeout_s=GROUP_CALL_TIMEOUT_S)
    except CONTROL_FAILURES:
        return _ASK_AGAIN
    return _ASK_AGAIN if answer.error_code in _LOOK_FOR_COORDINATOR else answer
