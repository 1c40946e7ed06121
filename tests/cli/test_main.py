"""The surface of the command: help, formats, exit codes, and a quick start."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer.main
from typer.testing import CliRunner

from braidlog import __version__
from braidlog.cli.errors import explain
from braidlog.cli.main import app
from braidlog.clients.errors import CommandError
from braidlog.runtime.errors import BraidError

HEAVY = [
    "confluent_kafka",
    "pydantic",
    "rich",
    "uvicorn",
    "starlette",
    "structlog",
    "obstore",
    "kio",
    "apsw",
    "msgspec",
]


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    if path and getattr(command, "invoke_without_command", False):
        yield path, command
    for name, child in children.items():
        if not child.hidden:
            yield from leaves(child, (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(app)))


GROUPS = sorted({path[:depth] for path in COMMANDS for depth in range(len(path))})


def test_all_commands_are_there() -> None:
    assert {" ".join(path) for path in COMMANDS} == {
        *(f"acl {verb}" for verb in ("create", "list", "delete")),
        *(f"user {verb}" for verb in ("create", "list", "delete")),
        "cert create",
        "up",
        "agent",
        "control",
        "pipeline",
        "jobs",
        "compact",
        "produce",
        "consume",
        "inspect",
        "cluster status",
        *(f"control {verb}" for verb in ("restore", "move", "backup", "verify")),
        "console",
        "doctor",
        "demo",
        "settings",
        "version",
        "sim",
        "mutants",
        "cost shuffle",
        "lightning status",
        "ripcord status",
        *(f"shuffle {verb}" for verb in ("cache", "expire", "lifecycle")),
        *(f"topic {verb}" for verb in ("create", "list", "describe", "alter", "truncate", "delete")),
        *(f"quota {verb}" for verb in ("describe", "set", "remove")),
        *(f"group {verb}" for verb in ("list", "describe", "delete", "reset-offsets")),
    }


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_an_example_and_a_json_format(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert command.help
    assert f"braid {' '.join(path)}" in command.help
    assert "Example: " in command.help
    assert "--format" in {option for parameter in command.params for option in parameter.opts}
    assert all(getattr(parameter, "help", None) for parameter in command.params if parameter.name != "help")


@pytest.mark.parametrize("path", [*COMMANDS, *GROUPS], ids=" ".join)
def test_help_fits_a_terminal(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}, terminal_width=80).stdout.splitlines()
    assert [line for line in shown if len(line) > 80] == []
    assert [line for line in shown[1:] if line.endswith("...")] == [], "a summary is cut off"
    if path in COMMANDS:
        (example,) = [line.strip() for line in shown if line.lstrip().startswith("Example: ")]
        assert (COMMANDS[path].help or "").splitlines()[-1].strip() == example, "an example can be copied whole"


def test_help_loads_nothing_heavy() -> None:
    code = f"import sys, braidlog.cli.main; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def braid(*arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "braidlog", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, stdin=subprocess.DEVNULL)


def test_a_wrong_setting_is_two_lines_and_an_exit_code() -> None:
    done = braid("up", "--set", "upload_sise_bytes=1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: upload_sise_bytes (command line) is not a setting\n  help: Did you mean upload_size_bytes?\n"
    )


def test_nobody_there_is_two_lines_and_an_exit_code() -> None:
    done = braid("topic", "list", "--bootstrap", "127.0.0.1:1")
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith("error: no agent answers at 127.0.0.1:1: ")
    assert "braid up" in second


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["up", "--set", "zone"], "has no equals sign"),
        (["inspect", "s3://"], "names no object"),
        (["inspect", "somewhere"], "there is no object file:///"),
        (["inspect", "file://./nowhere"], "there is no object file:///"),
        (["inspect", "file:///nowhere/at/all"], "there is no object file:///nowhere/at/all"),
        (["consume", "t", "--from", "middle"], "not a place to start"),
        (["topic", "alter", "t"], "nothing to change"),
    ],
)
def test_wrong_arguments(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, CommandError | BraidError)
    message, advice = explain(result.exception)
    assert says in message
    assert advice


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "create", "t", "-p", "100001"],
        ["topic", "alter", "t", "-p", "0"],
        ["produce", "t", "--compression", "7z"],
        ["group", "reset-offsets", "", "--topic", "t", "--to", "latest"],
        ["jobs", "--kind", "foo"],
        ["jobs", "--state", "foo"],
    ],
)
def test_values_out_of_range(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, "Invalid value for" in result.stderr) == (2, True)


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"braidlog {__version__}\n"
    assert CliRunner().invoke(app, ["version"]).stdout == f"braidlog {__version__}\n"
    assert json.loads(CliRunner().invoke(app, ["version", "--format", "json"]).stdout)["version"] == __version__


def test_settings_are_listed_with_their_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "braidlog.toml"
    config.write_text('[upload]\ninterval_ms = "100ms"\n')
    monkeypatch.setenv("BRAIDLOG_ZONE", "a")
    arguments = ["settings", "--format", "json", "--config", str(config), "--set", "num.partitions=4"]
    rows = {row["setting"]: row for row in json.loads(CliRunner().invoke(app, arguments).stdout)}
    assert (rows["upload_interval_ms"]["value"], rows["upload_interval_ms"]["from"]) == (100, str(config))
    assert (rows["zone"]["value"], rows["zone"]["from"]) == ("a", "BRAIDLOG_ZONE")
    assert (rows["num_partitions"]["value"], rows["num_partitions"]["from"]) == (4, "command line")
    assert (rows["listen"]["value"], rows["listen"]["from"]) == ("127.0.0.1:9092", "default")
    assert all(row["meaning"] for row in rows.values())
