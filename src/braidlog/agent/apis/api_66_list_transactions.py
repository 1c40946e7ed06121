"""ListTransactions: by state and producer, from version 1 by duration, from version 2 by a pattern."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_CALL_TIMEOUT_S, NO_THROTTLE, group_failure
from braidlog.agent.context import RequestContext
from braidlog.control.interface import ListTransactions, TransactionListing

KEY = 66
VERSIONS = range(3)

STATES = frozenset(
    (
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "PrepareEpochFence",
        "Dead",
    )
)
"""Kafka's. Not all of them are ever seen here, but asking for them is no mistake."""


async def handle(request: Any, context: RequestContext) -> Any:
    unknown = [state for state in request.state_filters if state not in STATES]
    code, found = await _list(request, [state for state in request.state_filters if state in STATES], context)
    if len(unknown) == len(request.state_filters) and unknown:
        found = []
    return context.answer(
        "ListTransactionsResponse",
        throttle_time=NO_THROTTLE,
        error_code=code,
        unknown_state_filters=tuple(unknown),
        transaction_states=tuple(
            context.answer(
                "TransactionState",
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state,
            )
            for each in found
        ),
    )


async def _list(request: Any, states: list[str], context: RequestContext) -> tuple[ErrorCode, list[TransactionListing]]:
    wanted = ListTransactions(
        states,
        list(request.producer_id_filters),
        getattr(request, "duration_filter", -1),
        getattr(request, "transactional_id_pattern", None) or "",
    )
    try:
        answer = await context.agent.control.list_transactions(wanted, timeout_s=GROUP_CALL_TIMEOUT_S)
    except CONTROL_FAILURES as error:
        return group_failure(error), []
    return ErrorCode(answer.error_code), answer.transactions
