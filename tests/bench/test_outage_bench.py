"""The outage of the control plane, as a person would run it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "outage.py"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["on", "auto"])
def test_nothing_fails_and_nothing_is_lost(mode: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "outage.json"
    run = subprocess.run(
        [sys.executable, str(BENCH), "--quick", "--mode", mode, "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    figures = json.loads(out.read_text())
    assert (figures["failed"], figures["lost"], figures["drained"]) == (0, 0, 1)
    assert (figures["duplicates"], figures["out_of_order"], figures["refused_and_sent_again"]) == (0, 0, 0)
    assert figures["live_p99_ratio"] <= 2
    assert figures["records_read"] == figures["records_sent"]
    assert figures["slow_files"] > 0
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
