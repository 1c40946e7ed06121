"""Answers InitProducerId and EndTxn with a producer's id and epoch."""

from typing import Any

from braidlog.agent.apis.shared import NO_THROTTLE, fenced_code
from braidlog.agent.apis.transactions.services import TransactionContext
from braidlog.control.interface import ProducerIdentity


def answer_identity(response: str, identity: ProducerIdentity, context: TransactionContext, *, fenced_from: int) -> Any:
    """Answer with a `response` that carries the identity.

    See `fenced_code` for `fenced_from`.
    """
    return context.answer(
        response,
        throttle_time=NO_THROTTLE,
        error_code=fenced_code(identity.error_code, context, fenced_from=fenced_from),
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
    )
