"""InitProducerId: gives an idempotent or transactional producer its id and epoch."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import ADMIN_CALL_TIMEOUT_S_MAX, CONTROL_FAILURES, group_failure
from braidlog.agent.apis.transactions.producer_identity import answer_identity
from braidlog.agent.apis.transactions.services import TransactionContext
from braidlog.control.interface import InitProducerId, ProducerIdentity
from braidlog.security.acls import IDEMPOTENT_WRITE, TOPIC, WRITE

KEY = 22
VERSIONS = range(6)


async def handle(request: Any, context: TransactionContext) -> Any:
    return answer_identity("InitProducerIdResponse", await _identity(request, context), context, fenced_from=4)


async def _identity(request: Any, context: TransactionContext) -> ProducerIdentity:
    transactional_id = str(request.transactional_id) if request.transactional_id is not None else None
    rights = context.rights
    if transactional_id is not None and not rights.transactional_id(WRITE, transactional_id):
        return ProducerIdentity(ErrorCode.transactional_id_authorization_failed, -1, -1)
    if transactional_id is None and not (rights.cluster(IDEMPOTENT_WRITE) or rights.allows_any(WRITE, TOPIC)):
        return ProducerIdentity(ErrorCode.cluster_authorization_failed, -1, -1)
    producer_id, producer_epoch = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    if (producer_id == -1) != (producer_epoch == -1):
        return ProducerIdentity(ErrorCode.invalid_request, -1, -1)
    timeout_ms = int(request.transaction_timeout.total_seconds() * 1000)
    services = context.services
    try:
        if transactional_id is None and services.reachability.is_away:
            # A new id, even if only a later epoch was asked for: nobody else can have it.
            return ProducerIdentity(ErrorCode.none, await services.producer_ids.take(), 0)
        return await services.control.init_producer_id(
            InitProducerId(transactional_id, timeout_ms, producer_id, producer_epoch),
            timeout_s=ADMIN_CALL_TIMEOUT_S_MAX,
        )
    except CONTROL_FAILURES as error:
        if transactional_id is not None:
            return ProducerIdentity(group_failure(error), -1, -1)
        # "Not available" would make a producer without a transactional id look for a coordinator that it does not have.
        return ProducerIdentity(ErrorCode.coordinator_load_in_progress, -1, -1)
