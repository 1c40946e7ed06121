"""`braid doctor` from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from braidlog.cli.main import app


def braid(*arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "braidlog", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, stdin=subprocess.DEVNULL)


def test_doctor_is_content_with_a_folder(tmp_path: Path) -> None:
    (tmp_path / "data" / "store").mkdir(parents=True)
    done = braid("doctor", "--format", "json", "--set", "listen=127.0.0.1:0", cwd=tmp_path)
    findings = json.loads(done.stdout)
    unhappy = {check["check"] for check in findings["checks"] if not check["ok"]}
    assert unhappy <= {"metadata durable"}  # where temporary folders are in memory
    assert len(findings["checks"]) == 9
    assert not list((tmp_path / "data" / "store").rglob("doctor/*"))


def test_doctor_makes_nothing_where_nothing_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("braidlog.cli.tools.doctor.VOLATILE_FILE_SYSTEMS", set())
    result = CliRunner().invoke(app, ["doctor", "--format", "json", "--set", "listen=127.0.0.1:0"])
    checks = {check["check"]: check for check in json.loads(result.stdout)["checks"]}
    assert set(checks) == {"store not there yet", "metadata durable", "advertised address"}
    assert all(check["ok"] for check in checks.values())
    assert f"{tmp_path}/data/store is not there yet; `braid up` will make it" in checks["store not there yet"]["detail"]
    assert list(tmp_path.iterdir()) == []


def test_doctor_says_where_no_store_could_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    arguments = ["doctor", "-s", f"store_url=file://{tmp_path}/file/store", "-s", "listen=127.0.0.1:0"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert f"cannot be made in {tmp_path}/file" in result.stdout


def test_doctor_says_what_to_do() -> None:
    arguments = ["doctor", "-s", "store_url=memory://", "-s", "metadata_url=sqlite://", "-s", "listen=127.0.0.1:0"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert result.stdout.count("FAIL") == 2
    assert result.stdout.count("help: ") == 2
    assert "7 checks passed, 2 failed" in result.stdout
