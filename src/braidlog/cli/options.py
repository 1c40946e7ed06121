"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from braidlog.cli.output import OutputFormat

Format = Annotated[OutputFormat, typer.Option("--format", help="text for people, json for programs.")]
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
    typer.Option("--store", metavar="URL", help="Where the data lies: file://, s3://, gs://, az://, memory://."),
]
ReadyFile = Annotated[
    Path | None,
    typer.Option("--ready-file", metavar="PATH", help="Write the bound addresses here, as JSON, once all is ready."),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE options as a dictionary."""
    from braidlog.runtime.errors import InvalidSetting

    found: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InvalidSetting(f"{option} {text!r} has no equals sign", help=f"Write it as {option} NAME=VALUE")
        found[name.strip()] = value
    return found
