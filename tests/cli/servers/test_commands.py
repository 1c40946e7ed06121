"""Commands that run servers: they stop cleanly, and a second one is refused."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.running import started


def fencing_epoch(database: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT epoch FROM fencing").fetchone()[0])


def test_stopping_is_clean_and_a_port_in_use_is_explained(tmp_path: Path) -> None:
    database = tmp_path / "meta.db"
    metadata = ["--metadata", f"sqlite://{database}"]
    with started("control", tmp_path, "--listen", "127.0.0.1:0", *metadata) as control:
        address = control.addresses["control"]
        for name in ("control", "up"):
            command = [name, "--listen", address, "--store", "memory://", *metadata, "--metrics", "off"]
            done = subprocess.run(
                [sys.executable, "-m", "braidlog", *command], capture_output=True, text=True, check=False
            )
            assert done.returncode == 1
            assert f"error: cannot listen on {address}" in done.stderr
            assert "--listen" in done.stderr
        assert fencing_epoch(database) == 1, "what could not start has taken the metadata from what runs"
        assert control.metrics()['braidlog_build_info{version="0.1.0"}'] == 1
        ready = tmp_path / "control.ready"
        assert json.loads(ready.read_text())["control"] == address
        assert control.stop() == 0
        assert not ready.exists()
        assert control.last_log_line() == "braid control: stopped"


@pytest.mark.slow
def test_a_second_control_plane_ends_the_first(tmp_path: Path) -> None:
    metadata = ["--listen", "127.0.0.1:0", "--metadata", f"sqlite://{tmp_path}/meta.db"]
    settings = ["-s", "write_epoch_interval_s=1s"]  # the first notices when it next writes
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    with (
        started("control", tmp_path / "first", *metadata, *settings) as first,
        started("control", tmp_path / "second", *metadata, "--take-over"),
    ):
        assert first.wait() == 1
        assert "taken over" in first.last_log_line()
