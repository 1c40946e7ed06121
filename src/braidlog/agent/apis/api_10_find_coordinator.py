"""FindCoordinator: which agent a group, or a transactional producer, talks to.

Any agent can serve any of them, since the control plane keeps them all. They are spread over the live agents by
rendezvous hashing, so that all agents name the same one and an agent that goes moves only its own.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import NO_THROTTLE, error_text
from braidlog.agent.context import RequestContext
from braidlog.agent.placement import pick
from braidlog.agent.view import ClusterView
from braidlog.control.interface import AgentInfo

KEY = 10
VERSIONS = range(7)

GROUP = 0
TRANSACTION = 1

_NOBODY = AgentInfo(-1, "", "", -1, "")


async def handle(request: Any, context: RequestContext) -> Any:
    key_type = getattr(request, "key_type", GROUP)
    if context.version >= 4:
        return context.answer(
            "FindCoordinatorResponse",
            throttle_time=NO_THROTTLE,
            coordinators=tuple(_coordinator(key, key_type, context) for key in request.coordinator_keys),
        )
    code, message, agent = _find(request.key, key_type, context)
    return context.answer(
        "FindCoordinatorResponse",
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=error_text(code, message),
        node_id=agent.node_id,
        host=agent.host,
        port=agent.port,
    )


def _coordinator(key: str, key_type: int, context: RequestContext) -> Any:
    code, message, agent = _find(key, key_type, context)
    return context.answer(
        "Coordinator",
        key=key,
        node_id=agent.node_id,
        host=agent.host,
        port=agent.port,
        error_code=code,
        error_message=error_text(code, message),
    )


def _find(key: str, key_type: int, context: RequestContext) -> tuple[ErrorCode, str, AgentInfo]:
    if key_type not in {GROUP, TRANSACTION}:
        return ErrorCode.invalid_request, f"Unsupported coordinator type {key_type}.", _NOBODY
    if context.agent.reachability.is_away:
        return ErrorCode.coordinator_not_available, "The control plane is away.", _NOBODY
    agent = coordinator_of(key, context.agent.view)
    if agent is None:
        return ErrorCode.coordinator_not_available, "No agent is registered.", _NOBODY
    return ErrorCode.none, "", agent


def coordinator_of(key: str, view: ClusterView) -> AgentInfo | None:
    """The live agent that this group or transactional id is sent to."""
    return pick(list(view.agents.values()), key.encode())
