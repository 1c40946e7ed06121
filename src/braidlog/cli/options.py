"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from braidlog.cli.output import OutputFormat

Format = Annotated[
    OutputFormat, typer.Option("--format", metavar="text|json", help="text for people, json for programs.")
]
Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", envvar="BRAIDLOG_BOOTSTRAP", metavar="HOST:PORT", help="Any agent of the cluster."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar="BRAIDLOG_CONFIG", metavar="FILE", help="A braidlog.toml with settings."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="NAME=VALUE", help="Any setting; repeat for more. `braid settings` lists them."
    ),
]
StoreUrl = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Where to store data: file://, s3://, gs://, az://, memory://."),
]
ReadyFile = Annotated[
    Path | None,
    typer.Option("--ready-file", metavar="PATH", help="Write the addresses here, as JSON, when all is ready."),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]

Control = Annotated[
    str | None,
    typer.Option(
        "--control",
        envvar="BRAIDLOG_CONTROL",
        metavar="HOST:PORT",
        help="The control plane, if no agent should be asked where it is.",
    ),
]
AnyAgent = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="BRAIDLOG_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Any agent of the cluster.",
    ),
]

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """Parse NAME=VALUE options into a dictionary."""
    from braidlog.clients.errors import WrongUsage

    found: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise WrongUsage(f"{option} {text!r} has no equals sign", help=f"Write it as {option} NAME=VALUE")
        found[name.strip()] = value
    return found


T = TypeVar("T", bound=float)


def _parsed(parse: Callable[[object], T], option: str, text: str, example: str) -> T:
    from braidlog.clients.errors import WrongUsage

    try:
        return parse(text)
    except ValueError as error:
        raise WrongUsage(f"{option} {text!r} {error}", help=f"For example: {option} {example}") from None


def size_bytes(option: str, text: str) -> int:
    """Parse an option such as `16MiB`."""
    from braidlog.runtime.quantities import parse_bytes

    return _parsed(parse_bytes, option, text, "16MiB")


def rate_bytes_per_s(option: str, text: str) -> float:
    """Parse an option such as `1GiB/s`."""
    from braidlog.runtime.quantities import parse_rate

    return _parsed(parse_rate, option, text, "1GiB/s")


def duration_s(option: str, text: str) -> float:
    """Parse an option such as `5s` or `1h`."""
    from braidlog.runtime.quantities import parse_seconds

    return _parsed(parse_seconds, option, text, "5s")
