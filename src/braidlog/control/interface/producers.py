"""Producer ids."""

from typing import Protocol

from braidlog.control.interface.base import Message


class InitProducerId(Message, frozen=True):
    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1


class ProducerIdentity(Message, frozen=True):
    error_code: int
    producer_id: int
    producer_epoch: int


class ProducerPlane(Protocol):
    async def init_producer_id(
        self, request: InitProducerId, *, timeout_s: float | None = None
    ) -> ProducerIdentity: ...
