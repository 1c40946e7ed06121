"""`braid group`: list, describe, delete, reset-offsets."""

from typing import Annotated

import typer

from braidlog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Format
from braidlog.cli.output import OutputFormat, counted, emit, emit_json, emit_rows, say

app = typer.Typer(
    help="List, describe and delete groups, and move their offsets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _named(group: str) -> str:
    if not group:
        raise typer.BadParameter("a group's id cannot be empty.")
    return group


Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.", callback=_named)]


@app.command("list")
def list_groups(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, format: Format = OutputFormat.TEXT) -> None:
    """List all groups, with how many records they are behind.

    \b
    Example: braid group list
    """
    from braidlog.clients.groups import group_lags, group_states
    from braidlog.clients.kafka_client import admin

    client = admin(bootstrap)
    states = group_states(client)
    lags = group_lags(client, sorted(states))
    rows = [{"group": group, "state": states[group], "lag": lag} for group, lag in lags.items()]
    emit_rows(format, ["group", "state", "lag"], rows)


@app.command()
def describe(group: Group, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, format: Format = OutputFormat.TEXT) -> None:
    """Show a group's members, offsets and how far it is behind.

    \b
    Example: braid group describe billing
    """
    from braidlog.clients.groups import describe_group
    from braidlog.clients.kafka_client import admin

    found = describe_group(admin(bootstrap), group)
    if format is OutputFormat.JSON:
        emit_json(found)
        return
    lag, members, offsets = found["lag"], found["members"], found["offsets"]
    emit(f"group {group}: {found['state']}, {counted(len(members), 'member')}, lag {'-' if lag is None else lag}")
    if offsets:
        emit("")
        emit_rows(format, ["topic", "partition", "committed", "high_watermark", "lag", "client"], offsets)
    if members:
        emit("")
        emit_rows(format, ["member", "client", "host", "partitions"], members)


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP", help="The groups' ids.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Delete groups that have no members, with their offsets.

    \b
    Example: braid group delete billing
    """
    from confluent_kafka import KafkaError

    from braidlog.cli.errors import tell_outcomes
    from braidlog.clients.errors import failures_of, kafka_code
    from braidlog.clients.groups import no_such_group
    from braidlog.clients.kafka_client import admin

    groups = list(dict.fromkeys(groups))
    client = admin(bootstrap)
    failures = failures_of(client.delete_consumer_groups(groups))
    done = {group: group not in failures for group in groups}
    for group, error in failures.items():
        if kafka_code(error) == KafkaError.GROUP_ID_NOT_FOUND:
            failures[group] = no_such_group(group)
    tell_outcomes(format, "group", "deleted", done, failures)


@app.command("reset-offsets")
def reset_offsets(
    group: Group,
    topic: Annotated[list[str], typer.Option("--topic", "-t", metavar="TOPIC[/PARTITION]", help="Repeat for more.")],
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help="earliest, latest, an offset, or @TIME.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Move a group's committed offsets. The group's consumers must be stopped.

    \b
    Example: braid group reset-offsets billing --topic orders --to earliest
    """
    from braidlog.clients.groups import move_offsets, parse_place, plan_move
    from braidlog.clients.kafka_client import admin

    moment_ms = parse_place("--to", to)
    client = admin(bootstrap)
    moves = plan_move(client, group, topic, to, moment_ms)
    for each in moves:
        if each.remark:
            say(each.remark)
    if not dry_run:
        move_offsets(client, group, moves)
    rows = [each.row() for each in moves]
    emit_rows(format, ["topic", "partition", "before", "after"], rows)
    if dry_run:
        say("Nothing was changed: --dry-run.")
