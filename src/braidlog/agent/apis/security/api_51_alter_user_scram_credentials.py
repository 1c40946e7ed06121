"""AlterUserScramCredentials: sets and deletes the passwords of users.

Clients send passwords salted and iterated. What is kept of them can check a login, and cannot be used for one.
"""

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.security.services import SecurityContext
from braidlog.agent.apis.shared import (
    ADMIN_CALL_TIMEOUT_S_MAX,
    CLUSTER_DENIED,
    CONTROL_FAILURES,
    NO_THROTTLE,
    VIEW_WAIT_S_MAX,
    admin_failure,
    error_text,
    wait_until_visible,
)
from braidlog.control.interface import AlterCredentials, Outcome, ScramCredential
from braidlog.security.acls import ALTER
from braidlog.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISM_NAMES, keys_of_salted

KEY = 51
VERSIONS = range(1)

USER_LENGTH_MAX = 256
_OK = Outcome(0)


async def handle(request: Any, context: SecurityContext) -> Any:
    named = [(str(each.name), int(each.mechanism)) for each in (*request.deletions, *request.upsertions)]
    outcomes = dict.fromkeys((user for user, _ in named), _OK)
    if not context.rights.cluster(ALTER):
        denied = Outcome(ErrorCode.cluster_authorization_failed, CLUSTER_DENIED)
        outcomes = dict.fromkeys(outcomes, denied)
    else:
        outcomes |= {user: reason for user, reason in _refusals(request, named).items() if reason.error_code}
        fine = {user for user, outcome in outcomes.items() if not outcome.error_code}
        if fine:
            outcomes |= await _alter(request, fine, context)
    return context.answer(
        "AlterUserScramCredentialsResponse",
        throttle_time=NO_THROTTLE,
        results=tuple(
            [
                context.answer(
                    "AlterUserScramCredentialsResult",
                    user=user,
                    error_code=ErrorCode(outcome.error_code),
                    error_message=error_text(outcome.error_code, outcome.error_message),
                )
                async for user, outcome in context.turns.each(outcomes.items())
            ]
        ),
    )


def _refusals(request: Any, named: list[tuple[str, int]]) -> dict[str, Outcome]:
    refusals: dict[str, Outcome] = {}
    counts = Counter(named)
    for user, mechanism in counts:
        if not user or len(user) > USER_LENGTH_MAX:
            refusals[user] = Outcome(ErrorCode.unacceptable_credential, "Username must not be empty, nor long")
        elif mechanism not in MECHANISM_NAMES:
            refusals[user] = Outcome(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
        elif counts[user, mechanism] > 1:
            message = "A user credential cannot be altered twice in the same request"
            refusals[user] = Outcome(ErrorCode.duplicate_resource, message)
    for each in request.upsertions:
        if not each.salt or not each.salted_password:
            refusals[str(each.name)] = Outcome(ErrorCode.unacceptable_credential, "Salt and password must not be empty")
        elif not ITERATIONS_MIN <= each.iterations <= ITERATIONS_MAX:
            message = f"Iterations must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            refusals[str(each.name)] = Outcome(ErrorCode.unacceptable_credential, message)
    return refusals


async def _alter(request: Any, users: set[str], context: SecurityContext) -> dict[str, Outcome]:
    removed = [(str(each.name), int(each.mechanism)) for each in request.deletions if str(each.name) in users]
    changed = [_credential(each) for each in request.upsertions if str(each.name) in users]
    try:
        answer = await context.services.control.alter_credentials(
            AlterCredentials(removed, changed), timeout_s=ADMIN_CALL_TIMEOUT_S_MAX
        )
    except CONTROL_FAILURES as error:
        return dict.fromkeys(users, Outcome(admin_failure(error), str(error)))
    outcomes = dict.fromkeys(users, _OK)
    whose = [*(user for user, _ in removed), *(each.user for each in changed)]
    for user, outcome in zip(whose, answer.outcomes, strict=True):
        if outcome.error_code:
            outcomes[user] = outcome
    view = context.services.view
    gone = [key for key in removed if not outcomes[key[0]].error_code]
    made = {(each.user, each.mechanism): each for each in changed if not outcomes[each.user].error_code}

    def visible() -> bool:
        known = view.credentials
        return not any(key in known for key in gone) and all(known.get(key) == each for key, each in made.items())

    await wait_until_visible(view, visible, VIEW_WAIT_S_MAX)
    return outcomes


def _credential(upsertion: Any) -> ScramCredential:
    number = int(upsertion.mechanism)
    keys = keys_of_salted(number, bytes(upsertion.salt), int(upsertion.iterations), bytes(upsertion.salted_password))
    return ScramCredential(str(upsertion.name), number, keys.salt, keys.iterations, keys.stored_key, keys.server_key)
