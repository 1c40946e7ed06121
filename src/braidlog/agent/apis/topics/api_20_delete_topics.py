"""DeleteTopics: deletes topics by name, and from version 6 also by id."""

from collections import Counter
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import (
    CONTROL_FAILURES,
    NO_THROTTLE,
    TOPIC_DENIED,
    admin_failure,
    call_timeout_s,
    error_text,
    topic_id_bytes,
    view_wait_s,
    wait_until_visible,
)
from braidlog.agent.apis.topics.services import TopicContext
from braidlog.configs.topic import effective_cluster_settings
from braidlog.control.interface import DeleteTopics, TopicOutcome, TopicRef
from braidlog.security.acls import DELETE, DESCRIBE

KEY = 20
VERSIONS = range(1, 7)
IDS_FROM = 6


async def handle(request: Any, context: TopicContext) -> Any:
    counts = Counter(_refs(request))
    view = context.services.view
    results: list[Any] = []
    wanted: list[TopicRef] = []
    deletable = effective_cluster_settings(view.cluster_configs).delete_topic_enable
    async for ref in context.turns.each(counts):  # clients expect one answer for each name
        if not deletable:
            code = ErrorCode.topic_deletion_disabled if context.version >= 3 else ErrorCode.invalid_request
            results.append(_result(ref, code, "Topic deletion is disabled (delete.topic.enable).", context))
        elif ref.name and ref.topic_id:
            message = "You may not specify both topic name and topic id."
            results.append(_result(ref, ErrorCode.invalid_request, message, context))
        elif not ref.name and not ref.topic_id:
            message = "Neither topic name nor id were specified."
            results.append(_result(ref, ErrorCode.invalid_request, message, context))
        elif counts[ref] > 1:
            message = "Duplicate topic name or id."
            results.append(_result(ref, ErrorCode.invalid_request, message, context))
        elif context.rights.is_limited and ref.topic_id and ref.topic_id not in view.topics_by_id:
            # This agent may not have heard of it yet. Then it does not know the name that rights are about.
            message = "This server does not host this topic ID."
            results.append(_result(ref, ErrorCode.unknown_topic_id, message, context))
        elif (denied := _denied(ref, context)) is not None:
            results.append(_result(denied, ErrorCode.topic_authorization_failed, TOPIC_DENIED, context))
        else:
            wanted.append(ref)
    if wanted:
        results += await _delete(wanted, request, context)
    return context.answer("DeleteTopicsResponse", throttle_time=NO_THROTTLE, responses=tuple(results))


def _denied(ref: TopicRef, context: TopicContext) -> TopicRef | None:
    """The topic as the client may see it, if it may not delete it."""
    known = context.services.view.topics_by_id.get(ref.topic_id)
    name = known.info.name if known is not None else ref.name
    if not name or (context.rights.topic(DELETE, name) and context.rights.topic(DESCRIBE, name)):
        return None
    return TopicRef(name if ref.name or context.rights.topic(DESCRIBE, name) else "", ref.topic_id)


def _refs(request: Any) -> list[TopicRef]:
    if hasattr(request, "topic_names"):
        return [TopicRef(str(name)) for name in request.topic_names]
    return [TopicRef(str(topic.name or ""), topic_id_bytes(topic.topic_id)) for topic in request.topics]


async def _delete(wanted: list[TopicRef], request: Any, context: TopicContext) -> list[Any]:
    view = context.services.view
    # Remembered now: a topic of the same name may be created again while we wait.
    known = {ref: view.topics_by_id.get(ref.topic_id) or view.topics_by_name.get(ref.name) for ref in wanted}
    try:
        answer = await context.services.control.delete_topics(
            DeleteTopics(wanted), timeout_s=call_timeout_s(request.timeout)
        )
    except CONTROL_FAILURES as error:
        return [_result(ref, admin_failure(error), str(error), context) for ref in wanted]
    gone: list[bytes] = []
    results: list[Any] = []
    async for ref, outcome in context.turns.each(zip(wanted, answer.outcomes, strict=True)):
        topic = known[ref]
        topic_id = ref.topic_id or _topic_id(outcome) or (topic.info.topic_id if topic is not None else b"")
        if not outcome.error_code and topic_id:
            gone.append(topic_id)
        results.append(
            _result(TopicRef(outcome.name or ref.name, topic_id), outcome.error_code, outcome.error_message, context)
        )
    await wait_until_visible(
        view, lambda: not any(topic_id in view.topics_by_id for topic_id in gone), view_wait_s(request.timeout)
    )
    return results


def _topic_id(outcome: TopicOutcome) -> bytes:
    return outcome.topic.topic_id if outcome.topic is not None else b""


def _result(ref: TopicRef, code: int, message: str, context: TopicContext) -> Any:
    return context.answer(
        "DeletableTopicResult",
        name=ref.name or (None if context.version >= IDS_FROM else ""),
        topic_id=UUID(bytes=ref.topic_id) if ref.topic_id else None,
        error_code=ErrorCode(code),
        error_message=error_text(code, message),
    )
