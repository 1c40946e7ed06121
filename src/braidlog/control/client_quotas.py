"""Client quotas: checked, stored and published here, and enforced by agents."""

import msgspec
from kio.schema.errors import ErrorCode

from braidlog.control.foundation import Foundation
from braidlog.control.interface import (
    AlterClientQuotas,
    ClientQuota,
    ClientQuotasChanged,
    Outcome,
    QuotaChange,
    QuotaOutcomes,
)
from braidlog.control.metadata.store import Transaction

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"
BYTE_RATES = ("producer_byte_rate", "consumer_byte_rate")
ENTITIES_MAX = 10_000
"""The limit on entities: every agent receives all of them with every change."""

Entity = tuple[tuple[str, str | None], ...]


class _Refused(Exception):
    """An invalid change. It becomes an outcome with an error code."""


class ClientQuotas:
    """Knows all quotas. Reads are from memory.

    A change takes the state lock, is written durably, and then becomes visible and is published.
    """

    def __init__(self, foundation: Foundation) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._feed = foundation.feed
        self._values: dict[Entity, dict[str, float]] = {}

    async def load(self) -> None:
        rows = await self._metadata.read(
            lambda tx: tx.query("SELECT entity, quota_key, quota_value FROM client_quotas ORDER BY entity, quota_key")
        )
        for text, key, value in rows:
            entity = tuple(msgspec.json.decode(text, type=list[tuple[str, str | None]]))
            self._values.setdefault(entity, {})[key] = value

    @property
    def quotas(self) -> list[ClientQuota]:
        return [ClientQuota(list(entity), dict(values)) for entity, values in self._values.items()]

    async def alter(self, request: AlterClientQuotas) -> QuotaOutcomes:
        async with self._state_lock:
            outcomes: list[Outcome] = []
            changed: dict[Entity, dict[str, float]] = {}
            entities = set(self._values)
            for change in request.changes:
                try:
                    entity = _entity(change)
                    before = changed.get(entity, self._values.get(entity, {}))
                    values = _changed(before, change)
                    if entity not in entities and len(entities) >= ENTITIES_MAX:
                        raise _Refused(f"There are {ENTITIES_MAX} entities with quotas already.")
                except _Refused as refused:
                    outcomes.append(Outcome(int(ErrorCode.invalid_request), str(refused)))
                    continue
                changed[entity] = values
                entities.add(entity)
                outcomes.append(Outcome(0))
            if changed and not request.validate_only:
                await self._metadata.plan(lambda tx: _write(tx, changed))
                self._values |= changed
                self._values = {entity: values for entity, values in self._values.items() if values}
                self._feed.publish([ClientQuotasChanged(self.quotas)])
            return QuotaOutcomes(outcomes)


def _entity(change: QuotaChange) -> Entity:
    entity = tuple(sorted(change.entity, key=lambda part: part[0]))
    kinds = [kind for kind, _ in entity]
    if not entity:
        raise _Refused("Invalid empty client quota entity.")
    if len(set(kinds)) < len(kinds):
        raise _Refused("An entity type is in the entity twice.")
    for kind, name in entity:
        if kind == IP:
            raise _Refused("Quotas of IP addresses are not supported.")
        if kind not in (USER, CLIENT_ID):
            raise _Refused(f"Unhandled client quota entity type: {kind}.")
        if name == "":
            raise _Refused(f"Empty {kind} is not supported.")
    return entity


def _changed(before: dict[str, float], change: QuotaChange) -> dict[str, float]:
    values = dict(before)
    for operation in change.operations:
        if operation.key not in BYTE_RATES:
            raise _Refused(f"Invalid configuration key {operation.key}.")
        if operation.value is None:
            values.pop(operation.key, None)
        elif not 0 < operation.value < 2**63:
            raise _Refused(f"Quota {operation.key} must be greater than 0.")
        elif operation.value != int(operation.value):
            raise _Refused(f"{operation.key} must be a whole number of bytes a second.")
        else:
            values[operation.key] = operation.value
    return values


def _write(tx: Transaction, changed: dict[Entity, dict[str, float]]) -> None:
    for entity, values in changed.items():
        text = msgspec.json.encode(entity).decode()
        tx.execute("DELETE FROM client_quotas WHERE entity = ?", (text,))
        tx.executemany(
            "INSERT INTO client_quotas (entity, quota_key, quota_value) VALUES (?, ?, ?)",
            [(text, key, value) for key, value in values.items()],
        )
