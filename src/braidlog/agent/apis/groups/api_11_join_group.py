"""JoinGroup: is answered when the group's rebalance is complete."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_WAIT_MARGIN_S, NO_THROTTLE, group_failure, milliseconds
from braidlog.control.interface import JoinAnswer, JoinGroup, JoinProtocol
from braidlog.security.acls import READ

KEY = 11
VERSIONS = range(10)

JOIN_WAIT_MS_MIN = 300_000
"""A join waits for members whose rebalance timeout may be longer than its own."""


async def handle(request: Any, context: GroupContext) -> Any:
    session_timeout_ms = milliseconds(request.session_timeout)
    # Version 0 has no rebalance timeout: the session timeout is used.
    rebalance_timeout = getattr(request, "rebalance_timeout", request.session_timeout)
    rebalance_timeout_ms = milliseconds(rebalance_timeout)
    group_instance_id = getattr(request, "group_instance_id", None)
    join = JoinGroup(
        group_id=str(request.group_id),
        member_id=request.member_id,
        group_instance_id=group_instance_id,
        client_id=context.client_id,
        client_host=context.client_host,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=[JoinProtocol(protocol.name, protocol.metadata) for protocol in request.protocols],
        require_known_member_id=context.version >= 4 and group_instance_id is None,
        reason=getattr(request, "reason", None) or "",
    )
    if not context.rights.group(READ, join.group_id):
        return _answer(JoinAnswer(ErrorCode.group_authorization_failed, -1, None, None, "", "", []), context)
    timeout_s = max(session_timeout_ms, rebalance_timeout_ms, JOIN_WAIT_MS_MIN) / 1000 + GROUP_WAIT_MARGIN_S
    try:
        answer = await context.services.control.join_group(join, timeout_s=timeout_s)
    except CONTROL_FAILURES as error:
        answer = JoinAnswer(group_failure(error), -1, None, None, "", request.member_id, [])
    return _answer(answer, context)


def _answer(answer: JoinAnswer, context: GroupContext) -> Any:
    return context.answer(
        "JoinGroupResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(answer.error_code),
        generation_id=answer.generation_id,
        protocol_type=answer.protocol_type,
        # It can only be null from version 7 on.
        protocol_name=answer.protocol_name if context.version >= 7 else answer.protocol_name or "",
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(
            context.answer(
                "JoinGroupResponseMember",
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in answer.members
        ),
    )
