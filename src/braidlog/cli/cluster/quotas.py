"""`braid quota`: describe, set and remove limits on the byte rates of clients."""

from typing import Annotated, Any

import typer

from braidlog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Format, pairs
from braidlog.cli.output import OutputFormat, emit_json, emit_rows, say

app = typer.Typer(help="Describe, set and remove client quotas.", no_args_is_help=True, rich_markup_mode=None)

DESCRIBE, ALTER, VERSION = 48, 49, 1
EXACT, DEFAULT = 0, 1
ALL_OTHERS = "<default>"
RATES = ("producer_byte_rate", "consumer_byte_rate")

User = Annotated[
    str | None, typer.Option("--user", "-u", metavar="NAME", help=f"A user, or {ALL_OTHERS} for all without their own.")
]
ClientId = Annotated[str | None, typer.Option("--client-id", "-i", metavar="ID", help=f"A client.id, or {ALL_OTHERS}.")]
Entity = list[tuple[str, str | None]]
"""Kinds and names. The name None stands for all that have no quota of their own."""


def _entity(user: str | None, client_id: str | None) -> Entity:
    given = [("user", user), ("client-id", client_id)]
    return [(kind, None if name == ALL_OTHERS else name) for kind, name in given if name is not None]


def _whose(user: str | None, client_id: str | None) -> Entity:
    from braidlog.clients.errors import WrongUsage

    entity = _entity(user, client_id)
    if not entity:
        raise WrongUsage(
            "the command does not say whose quota it is",
            help=f"Give --client-id ID, --user NAME or both. {ALL_OTHERS}: all others.",
        )
    return entity


@app.command()
def describe(
    user: User = None,
    client_id: ClientId = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Show quotas: all, or those of a user or client id.

    \b
    Example: braid quota describe --client-id loader
    """
    rows = _quotas(bootstrap, _entity(user, client_id))
    if format is OutputFormat.TEXT:
        rows = [{**row, "value": _shown(row["quota"], row["value"])} for row in rows]
    emit_rows(format, ["user", "client_id", "quota", "value"], rows)


def _quotas(bootstrap: str, entity: Entity) -> list[dict[str, Any]]:
    from braidlog.clients.kafka_call import call
    from braidlog.clients.kafka_client import check_listening
    from braidlog.wire.calls import request_types

    types = request_types(DESCRIBE, VERSION)
    components = tuple(
        types.ComponentData(entity_type=kind, match_type=DEFAULT if name is None else EXACT, match=name)
        for kind, name in entity
    )
    request = types.DescribeClientQuotasRequest(components=components, strict=False)
    answer = call(check_listening(bootstrap), DESCRIBE, VERSION, request)
    _raise_for(answer)
    rows = []
    for entry in answer.entries or ():
        names = {part.entity_type: part.entity_name or ALL_OTHERS for part in entry.entity}
        whose = {"user": names.get("user"), "client_id": names.get("client-id")}
        rows += [{**whose, "quota": each.key, "value": each.value} for each in entry.values]
    return sorted(rows, key=lambda row: (row["user"] or "", row["client_id"] or "", row["quota"]))


def _shown(quota: str, value: float) -> str:
    from braidlog.runtime.quantities import format_bytes

    return f"{format_bytes(value)}/s" if quota in RATES else f"{value:g}"


def _raise_for(answer: Any) -> None:
    from braidlog.clients.kafka_call import raise_for

    raise_for(answer, "`braid quota describe` shows what is set.")


@app.command("set")
def set_quota(
    rates: Annotated[
        list[str], typer.Argument(metavar="NAME=RATE", help="producer_byte_rate=10MiB/s, consumer_byte_rate=…")
    ],
    user: User = None,
    client_id: ClientId = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Limit clients to a rate in bytes a second.

    \b
    Example: braid quota set --client-id loader producer_byte_rate=10MiB/s
    """
    from braidlog.cli.options import rate_bytes_per_s

    entity = _whose(user, client_id)
    given = pairs(rates, "NAME=RATE")
    values = {name: rate_bytes_per_s(f"{name}=", rate) for name, rate in given.items()}
    _alter(bootstrap, entity, {_known(name): value for name, value in values.items()})
    _tell(format, entity, "set", list(values))


@app.command()
def remove(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="producer_byte_rate or consumer_byte_rate; else both."),
    ] = None,
    user: User = None,
    client_id: ClientId = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Lift the quotas of a user or client id.

    \b
    Example: braid quota remove --client-id loader
    """
    from braidlog.clients.errors import CommandError

    entity = _whose(user, client_id)
    given = [_known(name) for name in names or []]
    whose = dict(entity)
    there = [
        row["quota"]
        for row in _quotas(bootstrap, entity)
        if (row["user"] is None) is ("user" not in whose) and (row["client_id"] is None) is ("client-id" not in whose)
    ]
    gone = [name for name in there if not given or name in given]
    missing = [name for name in given if name not in there]
    if missing or not gone:
        raise CommandError(
            " ".join([f"{_written(entity)} has no quota", *missing[:1]]), help="`braid quota describe` shows all."
        )
    _alter(bootstrap, entity, dict.fromkeys(gone))
    _tell(format, entity, "removed", gone)


def _known(name: str) -> str:
    from braidlog.clients.errors import WrongUsage

    if name not in RATES:
        raise WrongUsage(f"{name!r} is not a quota", help=f"Use {' or '.join(RATES)}.")
    return name


def _alter(bootstrap: str, entity: Entity, values: "dict[str, float] | dict[str, None]") -> None:
    from braidlog.clients.kafka_call import call
    from braidlog.clients.kafka_client import check_listening
    from braidlog.wire.calls import request_types

    types = request_types(ALTER, VERSION)
    parts = tuple(types.EntityData(entity_type=kind, entity_name=name) for kind, name in entity)
    ops = tuple(types.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items())
    request = types.AlterClientQuotasRequest(entries=(types.EntryData(entity=parts, ops=ops),), validate_only=False)
    _raise_for(call(check_listening(bootstrap), ALTER, VERSION, request).entries[0])


def _written(entity: Entity) -> str:
    return ", ".join(f"{kind} {name or ALL_OTHERS}" for kind, name in entity)


def _tell(output: OutputFormat, entity: Entity, verb: str, quotas: list[str]) -> None:
    if output is OutputFormat.JSON:
        names = {kind.replace("-", "_"): name or ALL_OTHERS for kind, name in entity}
        emit_json({"user": None, "client_id": None, **names, verb: quotas})
    else:
        say(f"{_written(entity)}: {verb} {', '.join(quotas)}")
