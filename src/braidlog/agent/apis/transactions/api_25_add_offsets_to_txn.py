"""AddOffsetsToTxn: adds a group to a transaction that will commit its offsets."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import (
    CONTROL_FAILURES,
    GROUP_CALL_TIMEOUT_S,
    NO_THROTTLE,
    fenced_code,
    group_failure,
)
from braidlog.agent.apis.transactions.services import TransactionContext
from braidlog.control.interface import AddGroupToTransaction, TransactionOwner
from braidlog.security.acls import READ, WRITE

KEY = 25
VERSIONS = range(5)


async def handle(request: Any, context: TransactionContext) -> Any:
    return context.answer("AddOffsetsToTxnResponse", throttle_time=NO_THROTTLE, error_code=await _add(request, context))


async def _add(request: Any, context: TransactionContext) -> ErrorCode:
    owner = TransactionOwner(str(request.transactional_id), request.producer_id, request.producer_epoch)
    if not context.rights.transactional_id(WRITE, owner.transactional_id):
        return ErrorCode.transactional_id_authorization_failed
    if not context.rights.group(READ, str(request.group_id)):
        return ErrorCode.group_authorization_failed
    try:
        outcome = await context.services.control.add_group_to_transaction(
            AddGroupToTransaction(owner, str(request.group_id)), timeout_s=GROUP_CALL_TIMEOUT_S
        )
    except CONTROL_FAILURES as error:
        return group_failure(error)
    return fenced_code(outcome.error_code, context, fenced_from=2)
