"""What the command looks like from outside: help, formats, exit codes, and a quick start."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import click
import pytest
import typer.main
from confluent_kafka import KafkaError, KafkaException
from typer.testing import CliRunner

from braidlog import __version__
from braidlog.cli.errors import CommandError, explain, failures_of, tell_outcomes
from braidlog.cli.jobs import JobKind, JobState, compact_topic
from braidlog.cli.main import app
from braidlog.cli.output import OutputFormat, emit_fields, format_table
from braidlog.control.error_codes import ErrorCode
from braidlog.control.interface import jobs as interface
from braidlog.runtime.errors import BraidError, Remedy

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
    for name, child in children.items():
        if not child.hidden:
            yield from leaves(child, (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(app)))


def test_all_commands_are_there() -> None:
    assert {" ".join(path) for path in COMMANDS} == {
        "up",
        "agent",
        "control",
        "pipeline",
        "jobs",
        "compact",
        "produce",
        "consume",
        "inspect",
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
        *(f"topic {verb}" for verb in ("create", "list", "describe", "alter", "delete")),
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


def test_help_loads_nothing_heavy() -> None:
    code = f"import sys, braidlog.cli.main; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def braid(*arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "braidlog.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, stdin=subprocess.DEVNULL)


def test_a_wrong_setting_is_two_lines_and_an_exit_code() -> None:
    done = braid("up", "--set", "upload_sise_bytes=1")
    assert done.returncode == 1
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


def test_doctor_is_content_with_a_folder(tmp_path: Path) -> None:
    done = braid("doctor", "--format", "json", "--set", "listen=127.0.0.1:0", cwd=tmp_path)
    findings = json.loads(done.stdout)
    unhappy = {check["check"] for check in findings["checks"] if not check["ok"]}
    assert unhappy <= {"metadata durable"}  # where temporary folders are in memory
    assert len(findings["checks"]) == 9
    assert not list((tmp_path / "data" / "store").rglob("doctor/*"))


def test_doctor_says_what_to_do() -> None:
    arguments = ["doctor", "-s", "store_url=memory://", "-s", "metadata_url=sqlite://", "-s", "listen=127.0.0.1:0"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert result.stdout.count("FAIL") == 2
    assert result.stdout.count("help: ") == 2
    assert "7 checks passed, 2 failed" in result.stdout


def test_tables_are_aligned_and_plain() -> None:
    assert format_table(["name", "count"], [["a", 5], ["long", None]]) == "NAME  COUNT\na         5\nlong      -"
    assert format_table(["name"], []) == "NAME"


def test_fields(capsys: pytest.CaptureFixture[str]) -> None:
    emit_fields(OutputFormat.TEXT, {"a_b": True, "c": ["x", "y"]})
    assert capsys.readouterr().out == "a b  yes\nc    x,y\n"


def test_unexpected_errors_are_explained_too() -> None:
    assert explain(KeyError("x"))[0] == "KeyError: 'x'"
    assert explain(FileNotFoundError(2, "No such file", "/x")) == ("No such file: /x", "Check the path or address.")

    class Busy(BraidError):
        remedy = Remedy.RETRY

    assert explain(Busy("too much")) == ("too much", "It may pass: try again.")


@pytest.mark.parametrize("kind", Remedy)
def test_errors_without_help_of_their_own_get_a_sentence(kind: Remedy) -> None:
    class Wrong(BraidError):
        remedy = kind

    advice = explain(Wrong("wrong"))[1]
    assert len(advice.split()) > 3
    assert advice.endswith(".")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (KafkaError.NOT_CONTROLLER, "Is the control plane running?"),
        (KafkaError.COORDINATOR_NOT_AVAILABLE, "Is the control plane running?"),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "it may pass"),
        (KafkaError.REQUEST_TIMED_OUT, "it may pass"),
        (KafkaError.POLICY_VIOLATION, "it will not pass"),
        (KafkaError._BAD_MSG, "it will not pass"),
    ],
)
def test_what_may_pass_is_told_by_the_code(code: int, says: str) -> None:
    assert says in explain(KafkaException(KafkaError(code)))[1]


def test_what_nobody_answers_in_time_is_told_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("braidlog.cli.kafka.CALL_TIMEOUT_S", 0.01)
    answered: Future[None] = Future()
    answered.set_result(None)
    failures = failures_of({"a": answered, "b": Future()})
    with pytest.raises(CommandError, match="nobody knows what became of 'b'"):
        tell_outcomes(OutputFormat.JSON, "topic", "created", {"a": True, "b": False}, failures)
    rows = json.loads(capsys.readouterr().out)
    assert [(row["topic"], row["created"]) for row in rows] == [("a", True), ("b", None)]


def test_all_kinds_and_states_of_jobs_can_be_asked_for() -> None:
    assert {*JobKind} == {interface.MERGE, interface.COMPACT, interface.EXPIRE, interface.SCAN, interface.REPLAY}
    assert {*JobState} == {interface.WAITING, interface.RUNNING, interface.DONE, interface.FAILED}
    listed = CliRunner().invoke(app, ["jobs", "--help"]).stdout
    assert all(each in listed for each in (*JobKind, *JobState))


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "braid topic list"),
        (ErrorCode.POLICY_VIOLATION, "braid topic alter t --set cleanup.policy=compact"),
    ],
)
async def test_a_topic_that_cannot_be_compacted(code: ErrorCode, says: str) -> None:
    class Plane:
        async def request_compaction(self, request: object, *, timeout_s: float) -> interface.CompactionRequested:
            return interface.CompactionRequested(int(code), [], "no")

    with pytest.raises(CommandError) as caught:
        await compact_topic(Plane(), "t", 1.0)  # type: ignore[arg-type]
    assert says in caught.value.help


@pytest.mark.parametrize("name", ["nope/ready", "."])
def test_a_ready_file_that_cannot_be_written_is_found_before_the_start(tmp_path: Path, name: str) -> None:
    ready = tmp_path / name
    done = braid("up", "--store", f"file://{tmp_path}/store", "--ready-file", str(ready), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: --ready-file {ready} cannot be written: ")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [sys.executable, "-m", "braidlog.cli.main", "settings"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
