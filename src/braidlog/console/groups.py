"""The pages of consumer groups: the list, one group, and moves of its offsets."""

from typing import TYPE_CHECKING, Any

from braidlog.clients.groups import describe_group, group_lags, group_states, move_offsets, parse_place, plan_move
from braidlog.console.desk import Arguments, Desk, page_of

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


async def groups(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """Give one page of groups with their lag. Only those on it are asked about."""
    states = await desk.cluster.admin(group_states)
    names, page = page_of(sorted(states), arguments)
    lags = await desk.cluster.admin(group_lags, names) if names else {}
    return {"rows": [{"group": name, "state": states[name], "lag": lags[name]} for name in names], **page}


async def group(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    found = await desk.cluster.admin(describe_group, arguments.name("group"))
    return {**found, "rows": found["offsets"]}


async def reset(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """Move a group's offsets, or show what would be moved."""
    name, topics, to = arguments.name("group"), arguments.list("topics"), arguments.text("to", "earliest")
    moment_ms = parse_place("to", to)
    moves = await desk.cluster.admin(_move, name, topics, (to, moment_ms, not arguments.flag("preview", True)))
    is_done = not arguments.flag("preview", True)
    rows = [{**each.row(), "remark": each.remark or None} for each in moves]
    verb = "moved" if is_done else "would move"
    return {"done": f"{verb} {len(rows)} offset{'s' if len(rows) != 1 else ''} of {name}", "rows": rows}


def _move(client: "AdminClient", name: str, topics: list[str], how: tuple[str, int | None, bool]) -> Any:
    to, moment_ms, is_meant = how
    moves = plan_move(client, name, topics, to, moment_ms)
    if is_meant:
        move_offsets(client, name, moves)
    return moves
