"""Entities of client quotas in requests and responses: what DescribeClientQuotas and AlterClientQuotas share."""

from typing import Any

from braidlog.agent.context import RequestContext


def entity_answer(entity: list[tuple[str, str | None]], context: RequestContext) -> tuple[Any, ...]:
    return tuple(context.answer("EntityData", entity_type=kind, entity_name=name) for kind, name in entity)
