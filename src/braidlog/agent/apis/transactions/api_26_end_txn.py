"""EndTxn: commits or aborts a transaction.

From version 5 on, the answer gives the producer a new epoch.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import ADMIN_CALL_TIMEOUT_S_MAX, CONTROL_FAILURES, group_failure
from braidlog.agent.apis.transactions.producer_identity import answer_identity
from braidlog.agent.apis.transactions.services import TransactionContext
from braidlog.control.interface import EndTransaction, ProducerIdentity, TransactionOwner
from braidlog.security.acls import WRITE

KEY = 26
VERSIONS = range(6)

EPOCH_BUMP_FROM = 5


async def handle(request: Any, context: TransactionContext) -> Any:
    return answer_identity("EndTxnResponse", await _end(request, context), context, fenced_from=2)


async def _end(request: Any, context: TransactionContext) -> ProducerIdentity:
    owner = TransactionOwner(str(request.transactional_id), request.producer_id, request.producer_epoch)
    if not context.rights.transactional_id(WRITE, owner.transactional_id):
        return ProducerIdentity(ErrorCode.transactional_id_authorization_failed, -1, -1)
    try:
        return await context.services.control.end_transaction(
            EndTransaction(owner, request.committed, context.version >= EPOCH_BUMP_FROM),
            timeout_s=ADMIN_CALL_TIMEOUT_S_MAX,
        )
    except CONTROL_FAILURES as error:
        # It may have ended all the same. A client that asks again for the same end learns that.
        return ProducerIdentity(group_failure(error), -1, -1)
