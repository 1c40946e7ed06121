"""The comparison of upload policies, as a person would run it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "scheduler.py"


@pytest.mark.slow
def test_the_adaptive_policy_meets_its_goals(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "scheduler.json"
    run = subprocess.run(
        [sys.executable, str(BENCH), "--quick", "--only", "policies", "--only", "lone", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    figures = json.loads(out.read_text())
    assert figures["trickle_puts_vs_funnel"] <= 1.05
    assert figures["trickle_cost_vs_per_shard"] <= 0.1
    assert figures["saturation_throughput_vs_per_shard"] >= 0.95
    assert figures["saturation_p99_vs_per_shard"] <= 1.1
    assert figures["burst_recovery_s"] <= 3
    assert figures["lone_write_p50_vs_put"] <= 1.3
    assert set(figures["phases"]) == {"adaptive", "per-shard", "funnel", "coordinator"}
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
