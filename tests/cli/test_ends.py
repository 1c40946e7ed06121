"""How commands end: exit codes, errors in both formats, signals, and readers that go away."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from braidlog.cli import main as command

Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a command as the shell does, in this process; gives its exit code."""
    before = signal.getsignal(signal.SIGTERM)

    def braid(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["braid", *arguments])
        return command._run()

    yield braid
    signal.signal(signal.SIGTERM, before)


WRONG_USES = [
    (["nonsense"], "no such command"),
    (["topic", "create"], "missing argument"),
    (["topic", "create", "t", "-p", "many"], "--partitions"),
    (["topic", "create", "t", "--config", "retention.ms"], "has no equals sign"),
    (["topic", "alter", "t", "-p", "0"], "--partitions"),
    (["topic", "alter", "t"], "nothing to change"),
    (["topic", "list", "--bootstrap", "nowhere"], "has no port"),
    (["topic", "list", "--bootstrap", "host:port"], "has the port 'port'"),
    (["group", "describe", ""], "cannot be empty"),
    (["produce", "t", "--compression", "7z"], "--compression"),
    (["jobs", "--kind", "foo"], "--kind"),
    (["jobs", "--control", "foo"], "has no port"),
    (["compact", "t", "--now", "--timeout", "soon"], "--timeout"),
    (["lightning", "status", "--sequences", "-1"], "--sequences"),
    (["ripcord", "status", "--store", "nowhere"], "is not a url"),
    (["ripcord", "status", "--control", "nowhere"], "has no port"),
    (["up", "--shards", "0"], "--shards"),
    (["up", "--ripcord", "maybe"], "ripcord"),
    (["up", "--set", "upload_sise_bytes=1"], "did you mean upload_size_bytes?"),
    (["up", "--set", "cache_bytes=lots"], "cache_bytes=256mib"),
    (["up", "--config", "nowhere.toml"], "does not exist"),
    (["control", "--metadata", "postgres://x"], "unknown scheme"),
    (["agent", "--listen", "9092"], "has no port"),
    (["pipeline", "--spark-from", "lots"], "'lots' is not a size"),
    (["doctor", "--set", "store_url=ftp://x"], "unknown scheme"),
    (["cost", "shuffle", "--rate", "foo"], "--rate 'foo' is not a rate"),
    (["cost", "shuffle", "--machine-rate", "1e9"], "--machine-rate '1e9' is not a rate"),
    (["cost", "shuffle", "--overhead", "nan"], "--overhead nan is not a number"),
    (["cost", "shuffle", "--latency", "quick"], "use one of s3, s3-express"),
    (["shuffle", "cache", "--store", "memory://", "--memory", "much"], "--memory 'much' is not a size"),
    (["shuffle", "expire", "--store", "memory://", "--retention", "long"], "--retention 'long' is not a duration"),
    (["shuffle", "lifecycle", "--store", "file:///x"], "braid shuffle expire --store file:///x --retention 1h"),
    (["sim", "--scenario", "calm"], "choose one of"),
    (["sim", "--runs", "0"], "--runs"),
    (["mutants", "--only", "nothing"], "choose one of"),
    (["version", "--format", "xml"], "--format"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG_USES, ids=[" ".join(each[0]) for each in WRONG_USES])
def test_wrong_use_is_two_lines_and_code_2(
    arguments: list[str], says: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    first, second = printed.err.splitlines()
    assert first.startswith("error: ")
    assert second.startswith("  help: ")
    assert says in printed.err.lower()


@pytest.mark.parametrize("arguments", [["topic", "alter", "t", "-p", "0"], ["cost", "shuffle", "--rate", "foo"]])
def test_errors_are_json_where_json_was_asked_for(
    arguments: list[str], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, "--format", "json") == 2
    told = json.loads(capsys.readouterr().err)
    assert told.keys() == {"error", "help"}
    assert all(told.values())


@pytest.mark.parametrize("group", [[], ["topic"], ["shuffle"]])
def test_a_command_that_is_not_complete_shows_its_help(
    group: list[str], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*group) == 2
    printed = capsys.readouterr()
    assert "Commands:" in printed.err + printed.out


CONTROL_COMMANDS = [["jobs"], ["compact", "t", "--now"], ["lightning", "status"]]


@pytest.mark.parametrize("arguments", CONTROL_COMMANDS, ids=" ".join)
def test_a_control_plane_that_is_not_there_is_not_waited_for(
    arguments: list[str], run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: Any, **__: Any) -> Any:
        pytest.fail("a client that tries again and again was asked")

    monkeypatch.setattr("braidlog.control.remote.connect_control", connect)
    assert run(*arguments, "--control", "127.0.0.1:1") == 1
    assert capsys.readouterr().err.startswith("error: no control plane answers at 127.0.0.1:1: Connection refused\n")


def test_ripcord_says_that_the_control_plane_is_away(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ripcord", "status", "--store", "memory://", "--control", "127.0.0.1:1", "--format", "json") == 0
    assert "Connection refused" in json.loads(capsys.readouterr().out)["control"]["control_trouble"]


def test_settings_are_shown_as_they_are_written() -> None:
    shown = CliRunner().invoke(command.app, ["settings", "--set", "cache_bytes=1GiB"]).stdout
    rows = {line.split()[0]: line.split()[1] for line in shown.splitlines()[1:]}
    assert (rows["cache_bytes"], rows["memory_budget_bytes"], rows["job_lease_s"]) == ("1GiB", "512MiB", "30s")
    counted = CliRunner().invoke(command.app, ["settings", "--set", "cache_bytes=1GiB", "--format", "json"]).stdout
    assert {row["setting"]: row["value"] for row in json.loads(counted)}["cache_bytes"] == 1024**3


def test_settings_do_not_show_the_credentials_of_the_store() -> None:
    url = "s3://bucket/logs?access_key_id=AKIA&secret_access_key=hush"
    shown = CliRunner().invoke(command.app, ["settings", "--set", f"store_url={url}", "--format", "json"]).stdout
    assert {row["setting"]: row["value"] for row in json.loads(shown)}["store_url"] == "s3://bucket/logs"


@pytest.mark.parametrize("arguments", [["settings"], ["--help"]])
def test_a_reader_that_goes_away_ends_a_command_as_it_ends_others(arguments: list[str]) -> None:
    process = [sys.executable, "-m", "braidlog", *arguments]
    with subprocess.Popen(process, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait() == 141


def test_terminated_by_a_signal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def waiting(*_: Any, **__: Any) -> None:
        threading.Timer(0, os.kill, (os.getpid(), signal.SIGTERM)).start()
        threading.Event().wait(60)

    monkeypatch.setattr("braidlog.clients.kafka_client.check_listens", waiting)
    assert run("topic", "list") == 143
