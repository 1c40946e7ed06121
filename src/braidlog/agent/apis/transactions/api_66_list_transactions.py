"""ListTransactions: filters transactions by state and producer.

From version 1 on it also filters by duration, from version 2 on by a pattern.

Each agent lists the transactional ids that it coordinates, because clients ask every agent.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_CALL_TIMEOUT_S, NO_THROTTLE, group_failure
from braidlog.agent.apis.transactions.services import TransactionContext
from braidlog.agent.cluster.placement import coordinates
from braidlog.control.interface import ListTransactions, TransactionListing
from braidlog.security.acls import DESCRIBE

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
"""Kafka's states. Not all of them occur here, but a client may ask for them."""


async def handle(request: Any, context: TransactionContext) -> Any:
    services = context.services
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
            if context.rights.transactional_id(DESCRIBE, each.transactional_id)
            and coordinates(services.session.node_id, each.transactional_id, services.view)
        ),
    )


async def _list(
    request: Any, states: list[str], context: TransactionContext
) -> tuple[ErrorCode, list[TransactionListing]]:
    wanted = ListTransactions(
        states,
        list(request.producer_id_filters),
        getattr(request, "duration_filter", -1),
        getattr(request, "transactional_id_pattern", None) or "",
    )
    try:
        answer = await context.services.control.list_transactions(wanted, timeout_s=GROUP_CALL_TIMEOUT_S)
    except CONTROL_FAILURES as error:
        return group_failure(error), []
    return ErrorCode(answer.error_code), answer.transactions
