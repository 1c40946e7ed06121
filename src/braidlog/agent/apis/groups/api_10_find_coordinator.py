"""FindCoordinator: names the agent for a group or a transactional producer.

Any agent can serve any of them, since the control plane keeps their state. Rendezvous hashing spreads them over the
live agents, so all agents name the same coordinator, and only those of an agent that goes are moved.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.groups.internal_topics import OFFSETS, TRANSACTIONS, ensure_topic
from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.shared import NO_THROTTLE, error_text
from braidlog.agent.cluster.placement import coordinator_of
from braidlog.control.interface import AgentInfo
from braidlog.security.acls import DESCRIBE

KEY = 10
VERSIONS = range(7)

GROUP = 0
TRANSACTION = 1

_TOPICS = {GROUP: OFFSETS, TRANSACTION: TRANSACTIONS}

_NOBODY = AgentInfo(-1, "", "", -1, "")


async def handle(request: Any, context: GroupContext) -> Any:
    key_type = getattr(request, "key_type", GROUP)
    keys = request.coordinator_keys if context.version >= 4 else (request.key,)
    allowed = context.rights.group if key_type == GROUP else context.rights.transactional_id
    is_welcome = any(allowed(DESCRIBE, key) for key in keys)  # who may see nothing causes nothing either
    if is_welcome and key_type in _TOPICS and not context.services.reachability.is_away:
        await ensure_topic(_TOPICS[key_type], context)
    if context.version >= 4:
        return context.answer(
            "FindCoordinatorResponse",
            throttle_time=NO_THROTTLE,
            coordinators=await context.turns.map(
                lambda key: _coordinator(key, key_type, context), dict.fromkeys(request.coordinator_keys)
            ),
        )
    code, message, agent = _find(request.key, key_type, context)
    return context.answer(
        "FindCoordinatorResponse",
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=error_text(code, message),
        node_id=agent.node_id,
        host=agent.address_for(context.listener)[0],
        port=agent.address_for(context.listener)[1],
    )


def _coordinator(key: str, key_type: int, context: GroupContext) -> Any:
    code, message, agent = _find(key, key_type, context)
    return context.answer(
        "Coordinator",
        key=key,
        node_id=agent.node_id,
        host=agent.address_for(context.listener)[0],
        port=agent.address_for(context.listener)[1],
        error_code=code,
        error_message=error_text(code, message),
    )


def _find(key: str, key_type: int, context: GroupContext) -> tuple[ErrorCode, str, AgentInfo]:
    if key_type not in {GROUP, TRANSACTION}:
        return ErrorCode.invalid_request, f"Unsupported coordinator type {key_type}.", _NOBODY
    if key_type == GROUP and not context.rights.group(DESCRIBE, key):
        return ErrorCode.group_authorization_failed, "Group authorization failed.", _NOBODY
    if key_type == TRANSACTION and not context.rights.transactional_id(DESCRIBE, key):
        return ErrorCode.transactional_id_authorization_failed, "Transactional Id authorization failed.", _NOBODY
    if context.services.reachability.is_away:
        return ErrorCode.coordinator_not_available, "The control plane is away.", _NOBODY
    agent = coordinator_of(key, context.services.view)
    if agent is None:
        return ErrorCode.coordinator_not_available, "No agent is registered.", _NOBODY
    return ErrorCode.none, "", agent
