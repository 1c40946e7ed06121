"""Environment variables that nothing reads."""

import json
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from braidlog.cli import main as command
from braidlog.cli.environment import unknown_variables

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


def test_variables_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    known = ["BRAIDLOG_ZONE", "BRAIDLOG_BOOTSTRAP", "BRAIDLOG_CONTROL", "BRAIDLOG_TRACEBACK"]
    foreign = ["BRAIDLOG_SERVICE_HOST", "BRAIDLOG_PORT", "BRAIDLOG_UP_PORT_9092_TCP_ADDR", "PATH", "BRAIDLOGS"]
    assert unknown_variables(dict.fromkeys([*known, *foreign], "x")) == []
    assert unknown_variables({"BRAIDLOG_UPLOAD_SISE_BYTES": "1", "BRAIDLOG_BOOTSTRP": "1", "BRAIDLOG_QQ": "1"}) == [
        ("BRAIDLOG_BOOTSTRP", "Did you mean BRAIDLOG_BOOTSTRAP?"),
        ("BRAIDLOG_QQ", "`braid settings` lists all that exist."),
        ("BRAIDLOG_UPLOAD_SISE_BYTES", "Did you mean BRAIDLOG_UPLOAD_SIZE_BYTES?"),
    ]
    monkeypatch.setenv("BRAIDLOG_ZOME", "a")
    assert run("version") == 0
    assert capsys.readouterr().err == (
        "warning: BRAIDLOG_ZOME is set, and means nothing to Braidlog\n  help: Did you mean BRAIDLOG_ZONE?\n"
    )
    assert run("version", "--format", "json") == 0
    assert json.loads(capsys.readouterr().err)["help"] == "Did you mean BRAIDLOG_ZONE?"
