"""InitProducerId: an identity for an idempotent producer, or for one that writes in transactions."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import (
    ADMIN_CALL_TIMEOUT_S_MAX,
    CONTROL_FAILURES,
    NO_THROTTLE,
    fenced_code,
    group_failure,
)
from braidlog.agent.context import RequestContext
from braidlog.control.interface import InitProducerId, ProducerIdentity

KEY = 22
VERSIONS = range(6)


async def handle(request: Any, context: RequestContext) -> Any:
    identity = await _identity(request, context)
    return context.answer(
        "InitProducerIdResponse",
        throttle_time=NO_THROTTLE,
        error_code=fenced_code(identity.error_code, context, fenced_from=4),
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
    )


async def _identity(request: Any, context: RequestContext) -> ProducerIdentity:
    transactional_id = str(request.transactional_id) if request.transactional_id is not None else None
    producer_id, producer_epoch = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    if (producer_id == -1) != (producer_epoch == -1):
        return ProducerIdentity(ErrorCode.invalid_request, -1, -1)
    timeout_ms = int(request.transaction_timeout.total_seconds() * 1000)
    agent = context.agent
    try:
        if transactional_id is None and agent.reachability.is_away:
            # A new identity, even where only a later epoch was asked for: nobody else can have it.
            return ProducerIdentity(ErrorCode.none, await agent.producer_ids.take(), 0)
        return await agent.control.init_producer_id(
            InitProducerId(transactional_id, timeout_ms, producer_id, producer_epoch),
            timeout_s=ADMIN_CALL_TIMEOUT_S_MAX,
        )
    except CONTROL_FAILURES as error:
        if transactional_id is not None:
            return ProducerIdentity(group_failure(error), -1, -1)
        # "Not available" would send a producer without a transactional id to look for a coordinator it has not got.
        return ProducerIdentity(ErrorCode.coordinator_load_in_progress, -1, -1)
