"""The gain of Lightning topics, as a person would measure it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "lightning.py"


@pytest.mark.slow
def test_lightning_topics_meet_their_goals(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "lightning.json"
    run = subprocess.run(
        [sys.executable, str(BENCH), "--quick", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    figures = json.loads(out.read_text())
    assert figures["p50_vs_classic"] <= 0.5
    assert figures["p50_over_floor"] <= 1.1
    assert figures["p99_over_floor"] <= 1.1
    assert figures["end_to_end_vs_classic"] <= 1.05
    assert figures["classic_p50_over_lightning_real_sequencer"] > 0
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
