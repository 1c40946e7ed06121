"""EndTxn: commit or abort. From version 5 on every end gives the producer a new epoch, which the answer tells."""

from typing import Any

from braidlog.agent.apis.shared import (
    ADMIN_CALL_TIMEOUT_S_MAX,
    CONTROL_FAILURES,
    NO_THROTTLE,
    fenced_code,
    group_failure,
)
from braidlog.agent.context import RequestContext
from braidlog.control.interface import EndTransaction, ProducerIdentity, TransactionOwner

KEY = 26
VERSIONS = range(6)

EPOCH_BUMP_FROM = 5


async def handle(request: Any, context: RequestContext) -> Any:
    identity = await _end(request, context)
    return context.answer(
        "EndTxnResponse",
        throttle_time=NO_THROTTLE,
        error_code=fenced_code(identity.error_code, context, fenced_from=2),
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
    )


async def _end(request: Any, context: RequestContext) -> ProducerIdentity:
    owner = TransactionOwner(str(request.transactional_id), request.producer_id, request.producer_epoch)
    try:
        return await context.agent.control.end_transaction(
            EndTransaction(owner, request.committed, context.version >= EPOCH_BUMP_FROM),
            timeout_s=ADMIN_CALL_TIMEOUT_S_MAX,
        )
    except CONTROL_FAILURES as error:
        # It may have ended all the same. Whoever asks again for the same end is told so.
        return ProducerIdentity(group_failure(error), -1, -1)
