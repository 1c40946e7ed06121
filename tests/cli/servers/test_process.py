"""The ready file of a server."""

import subprocess
import sys
from pathlib import Path

import pytest


def braid(*arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "braidlog", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("name", ["nope/ready", "."])
def test_a_ready_file_that_cannot_be_written_is_found_before_the_start(tmp_path: Path, name: str) -> None:
    ready = tmp_path / name
    done = braid("up", "--store", f"file://{tmp_path}/store", "--ready-file", str(ready), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: --ready-file {ready} cannot be written: ")
    assert list(tmp_path.iterdir()) == []
