"""Helpers of many handlers: error codes, deadlines, waiting for the view.

The codes are Kafka's codes for failures of the control plane.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from braidlog.agent.apis.context import RequestContext
from braidlog.agent.cluster.view import ClusterView, TopicView
from braidlog.runtime.errors import BraidError, Remedy
from braidlog.security.acls import CLUSTER, CLUSTER_NAME, DESCRIBE, GROUP, TOPIC
from braidlog.security.rights import Rights

NO_THROTTLE = i32Timedelta.parse(timedelta(0))

GROUP_CALL_TIMEOUT_S = 10.0
"""The timeout of group calls that do not wait for other members."""
ADMIN_CALL_TIMEOUT_S_MAX = 60.0
VIEW_WAIT_S_MAX = 5.0
"""How long an answer waits until this agent's own view shows the change."""
GROUP_WAIT_MARGIN_S = 10.0
"""The control plane ends joins and syncs in time. The deadline, this much later, is for one that has gone away."""

CONTROL_FAILURES = (BraidError,)
"""Errors of calls to a control plane that, or whose metadata store, is away, slow, full or replaced. Wrong requests
never raise errors, so clients can always be told to try again."""

OPERATIONS_UNKNOWN = -(2**31)
"""The operations that a client is allowed, if it did not ask for them."""
CLUSTER_DENIED = "Cluster authorization failed."
TOPIC_DENIED = "Topic authorization failed."


def cluster_operations(rights: Rights, *, told: bool) -> int:
    """What the client may do to the cluster, as a bit set, if it asks for that."""
    if not told:
        return OPERATIONS_UNKNOWN
    return rights.operations(CLUSTER, CLUSTER_NAME) if rights.cluster(DESCRIBE) else 0


def topic_operations(rights: Rights, name: str, *, told: bool) -> int:
    """What the client may do to a topic, as a bit set, if it asks for that.

    A topic need not exist for that. A topic that the client may not see tells nothing.
    """
    return rights.operations(TOPIC, name) if told and rights.topic(DESCRIBE, name) else OPERATIONS_UNKNOWN


def group_operations(rights: Rights, group_id: str, *, told: bool) -> int:
    """What the client may do to a group, as a bit set, if it asks for that."""
    return rights.operations(GROUP, group_id) if told else OPERATIONS_UNKNOWN


def group_failure(_error: BraidError) -> ErrorCode:
    """The code for group APIs.

    Clients look for the coordinator again, and so for an agent that can reach it.
    """
    return ErrorCode.coordinator_not_available


def fenced_code(code: int, context: RequestContext[object], *, fenced_from: int) -> ErrorCode:
    """The code for transaction APIs.

    Older versions have another code for a fenced producer.
    """
    if code == ErrorCode.producer_fenced and context.version < fenced_from:
        return ErrorCode.invalid_producer_epoch
    return ErrorCode(code)


def admin_failure(error: BraidError) -> ErrorCode:
    """The code for administrative APIs.

    It says to try again elsewhere or, if the outcome is unknown, to look first.
    """
    return ErrorCode.request_timed_out if error.remedy is Remedy.CHECK_OUTCOME else ErrorCode.not_controller


def error_text(code: int, message: str) -> str | None:
    """The error message, or None without an error, as in Kafka."""
    return (message or None) if code else None


def call_timeout_s(requested: timedelta) -> float:
    """The timeout of an administrative call.

    Clients may also send zero or less, for "do not wait".
    """
    return min(max(requested.total_seconds(), 1.0), ADMIN_CALL_TIMEOUT_S_MAX)


def view_wait_s(requested: timedelta) -> float:
    return min(max(requested.total_seconds(), 0.0), VIEW_WAIT_S_MAX)


async def wait_until_visible(view: ClusterView, visible: Callable[[], bool], timeout_s: float) -> None:
    """Wait until the view shows a change, but no longer than `timeout_s`.

    The control plane has already made the change.

    A client that creates a topic and then asks this agent for it should find it. Past the deadline the change is
    still durable: the answer is given, and the view follows.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while not visible():
                await view.wait_catalog_change()
    except TimeoutError:
        pass


def topic_of(view: ClusterView, topic: object) -> TopicView | None:
    """The topic that a part of a request names.

    It is named by `topic_id` if the version has one, else by `name`.
    """
    if hasattr(topic, "topic_id"):
        return view.topics_by_id.get(topic_id_bytes(topic.topic_id))
    return view.topics_by_name.get(getattr(topic, "name", ""))


def is_denied(rights: Rights, operation: int, topic: object, known: TopicView | None) -> bool:
    """Whether the client may not do this to the topic that a part of a request names.

    An id that no topic has is denied to nobody: it says nothing.
    """
    name = known.info.name if known is not None else getattr(topic, "name", None)
    return name is not None and not rights.topic(operation, name)


def unknown_topic_code(topic: object) -> ErrorCode:
    return ErrorCode.unknown_topic_id if hasattr(topic, "topic_id") else ErrorCode.unknown_topic_or_partition


def topic_id_bytes(topic_id: UUID | None) -> bytes:
    """The bytes of a topic id. kio reads the zero id, which no topic has, as None."""
    return topic_id.bytes if topic_id is not None else b""


def duplicates(names: list[str]) -> set[str]:
    seen: set[str] = set()
    return {name for name in names if name in seen or seen.add(name)}  # type: ignore[func-returns-value]


def milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def duration_of(duration_ms: int) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(milliseconds=duration_ms))
