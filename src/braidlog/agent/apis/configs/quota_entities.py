"""Writes entities of client quotas, for the APIs that describe and alter them."""

from typing import Any

from braidlog.agent.apis.configs.services import ConfigContext


async def entity_answer(entity: list[tuple[str, str | None]], context: ConfigContext) -> tuple[Any, ...]:
    return await context.turns.map(
        lambda part: context.answer("EntityData", entity_type=part[0], entity_name=part[1]), entity
    )
