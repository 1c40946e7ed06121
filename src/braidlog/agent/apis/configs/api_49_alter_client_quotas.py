"""AlterClientQuotas: sets byte rates for users and client ids, or defaults."""

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.configs.quota_entities import entity_answer
from braidlog.agent.apis.configs.services import ConfigContext
from braidlog.agent.apis.shared import (
    ADMIN_CALL_TIMEOUT_S_MAX,
    CLUSTER_DENIED,
    CONTROL_FAILURES,
    NO_THROTTLE,
    VIEW_WAIT_S_MAX,
    admin_failure,
    error_text,
    wait_until_visible,
)
from braidlog.control.interface import AlterClientQuotas, Outcome, QuotaChange, QuotaOperation
from braidlog.security.acls import ALTER_CONFIGS

KEY = 49
VERSIONS = range(2)


async def handle(request: Any, context: ConfigContext) -> Any:
    changes = [
        QuotaChange(
            [(part.entity_type, part.entity_name) for part in entry.entity],
            [QuotaOperation(op.key, None if op.remove else float(op.value)) for op in entry.ops],
        )
        async for entry in context.turns.each(request.entries)
    ]
    if not context.rights.cluster(ALTER_CONFIGS):
        denied = Outcome(ErrorCode.cluster_authorization_failed, CLUSTER_DENIED)
        return await _answer(changes, [denied] * len(changes), context)
    repeated = await _repeated(changes, context)
    if repeated:
        refusal = Outcome(ErrorCode.invalid_request, "An entity is in the request twice.")
        outcomes = [
            refusal if _identity(change) in repeated else Outcome(0) async for change in context.turns.each(changes)
        ]
        return await _answer(changes, outcomes, context)
    try:
        alteration = AlterClientQuotas(changes, request.validate_only)
        answer = await context.services.control.alter_client_quotas(alteration, timeout_s=ADMIN_CALL_TIMEOUT_S_MAX)
        outcomes = answer.outcomes
    except CONTROL_FAILURES as error:
        outcomes = [Outcome(admin_failure(error), str(error))] * len(changes)
    if not request.validate_only:
        made = [change for change, outcome in zip(changes, outcomes, strict=True) if not outcome.error_code]
        await wait_until_visible(context.services.view, lambda: _visible(made, context), VIEW_WAIT_S_MAX)
    return await _answer(changes, outcomes, context)


def _identity(change: QuotaChange) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted(change.entity, key=lambda part: part[0]))


async def _repeated(changes: list[QuotaChange], context: ConfigContext) -> set[tuple[tuple[str, str | None], ...]]:
    counts = Counter(await context.turns.map(_identity, changes))
    return {identity for identity, count in counts.items() if count > 1}


def _visible(changes: list[QuotaChange], context: ConfigContext) -> bool:
    values = {tuple(quota.entity): quota.values for quota in context.services.view.quotas.quotas}
    return all(
        values.get(_identity(change), {}).get(operation.key) == operation.value
        for change in changes
        for operation in change.operations
    )


async def _answer(changes: list[QuotaChange], outcomes: list[Outcome], context: ConfigContext) -> Any:
    return context.answer(
        "AlterClientQuotasResponse",
        throttle_time=NO_THROTTLE,
        entries=tuple(
            [
                context.answer(
                    "EntryData",
                    error_code=ErrorCode(outcome.error_code),
                    error_message=error_text(outcome.error_code, outcome.error_message),
                    entity=await entity_answer(change.entity, context),
                )
                async for change, outcome in context.turns.each(zip(changes, outcomes, strict=True))
            ]
        ),
    )
