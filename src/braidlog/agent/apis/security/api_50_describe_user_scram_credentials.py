"""DescribeUserScramCredentials: lists users, and how they may log in with SCRAM."""

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.security.services import SecurityContext
from braidlog.agent.apis.shared import CLUSTER_DENIED, NO_THROTTLE, error_text
from braidlog.control.interface import ScramCredential
from braidlog.security.acls import DESCRIBE

KEY = 50
VERSIONS = range(1)


async def handle(request: Any, context: SecurityContext) -> Any:
    code, message, results = ErrorCode.none, None, list[Any]()
    if not context.rights.cluster(DESCRIBE):
        code, message = ErrorCode.cluster_authorization_failed, CLUSTER_DENIED
    else:
        by_user: dict[str, list[ScramCredential]] = {}
        for credential in context.services.view.credentials.values():
            by_user.setdefault(credential.user, []).append(credential)
        asked = [str(each.name) for each in request.users or ()] or sorted(by_user)
        async for user, count in context.turns.each(Counter(asked).items()):
            results.append(_result(user, by_user.get(user, []), is_repeated=count > 1, context=context))
    return context.answer(
        "DescribeUserScramCredentialsResponse",
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        results=tuple(results),
    )


def _result(user: str, found: list[ScramCredential], *, is_repeated: bool, context: SecurityContext) -> Any:
    code, message = ErrorCode.none, ""
    if is_repeated:
        code, message, found = ErrorCode.duplicate_resource, f"The user {user} is in the request twice.", []
    elif not found:
        code = ErrorCode.resource_not_found
        message = f"Attempt to describe a user credential that does not exist: {user}"
    return context.answer(
        "DescribeUserScramCredentialsResult",
        user=user,
        error_code=code,
        error_message=error_text(code, message),
        credential_infos=tuple(
            context.answer("CredentialInfo", mechanism=each.mechanism, iterations=each.iterations) for each in found
        ),
    )
