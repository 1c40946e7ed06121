"""What the ACL APIs share: who may use them, and filters in requests."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.security.services import SecurityContext
from braidlog.agent.apis.shared import CLUSTER_DENIED
from braidlog.security.acls import (
    ANY,
    ANY_OPERATION,
    ANY_PATTERN,
    ANY_PERMISSION,
    MATCH,
    OPERATION_NAMES,
    OPERATIONS_OF,
    PATTERN_NAMES,
    PERMISSION_NAMES,
    AclFilter,
)

NO_AUTHORIZER = "No Authorizer is configured: start the agents with authorizer=acl."

Refusal = tuple[ErrorCode, str]


def refusal(operation: int, context: SecurityContext) -> Refusal | None:
    """Why the client gets no answer; None if it gets one."""
    if not context.rights.cluster(operation):
        return ErrorCode.cluster_authorization_failed, CLUSTER_DENIED
    if not context.services.authorizer.is_on:
        return ErrorCode.security_disabled, NO_AUTHORIZER
    return None


def read_filter(part: Any) -> AclFilter | Refusal:
    """The filter of a request, or the reason why it means nothing."""
    wanted = AclFilter(
        int(part.resource_type_filter),
        part.resource_name_filter,
        int(part.pattern_type_filter),
        part.principal_filter,
        part.host_filter,
        int(part.operation),
        int(part.permission_type),
    )
    known = (
        (wanted.resource_type, (ANY, *OPERATIONS_OF)),
        (wanted.pattern_type, (ANY_PATTERN, MATCH, *PATTERN_NAMES)),
        (wanted.operation, (ANY_OPERATION, *OPERATION_NAMES)),
        (wanted.permission, (ANY_PERMISSION, *PERMISSION_NAMES)),
    )
    if any(value not in values for value, values in known):
        return ErrorCode.invalid_request, "The filter contains unknown elements."
    return wanted
