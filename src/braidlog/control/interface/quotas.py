"""Client quotas: how many bytes per second a user or a client may write and read."""

from typing import Protocol

from braidlog.control.interface.base import Message
from braidlog.control.interface.catalog import Outcome


class QuotaOperation(Message, frozen=True):
    key: str
    value: float | None
    """None removes the limit."""


class QuotaChange(Message, frozen=True):
    entity: list[tuple[str, str | None]]
    """As in `ClientQuota`, in any order."""
    operations: list[QuotaOperation]


class AlterClientQuotas(Message, frozen=True):
    changes: list[QuotaChange]
    validate_only: bool = False


class QuotaOutcomes(Message, frozen=True):
    """The outcome of each change, in order."""

    outcomes: list[Outcome]


class QuotaPlane(Protocol):
    async def alter_client_quotas(
        self, request: AlterClientQuotas, *, timeout_s: float | None = None
    ) -> QuotaOutcomes: ...
