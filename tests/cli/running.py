"""Commands against a Braidlog that runs."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from braidlog.cli.main import app
from braidlog.node.children import BraidProcess
from braidlog.runtime.clock import SystemClock


@contextlib.contextmanager
def started(name: str, folder: Path, *arguments: str) -> Iterator[BraidProcess]:
    where = ["--metrics", "127.0.0.1:0", "--store", f"file://{folder}/store"]
    with BraidProcess(name, [name, *where, *arguments], folder, SystemClock()) as process:
        yield process


def braid(bootstrap: str, *arguments: str, given: str | None = None) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--bootstrap", bootstrap, "--format", "json"], input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return lines[0] if len(lines) == 1 else lines
