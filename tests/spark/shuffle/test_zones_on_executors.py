"""Executors in two zones, as processes of their own: what they share is killed, and every row comes out once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).resolve().parents[3] / "bench" / "_shuffle_zones.py"
WAIT_S_MAX = 1200


@pytest.mark.slow
def test_a_nodes_service_and_a_whole_zones_ring_are_killed() -> None:
    """The job itself compares rows, and ends with an error if they are not those that went in."""
    arguments = ["--zones", "2", "--nodes", "3", "--mib", "4", "--runs", "1", "--partitions", "12"]
    run = subprocess.run(
        [sys.executable, str(JOB), *arguments, "--kill", "node", "--kill", "zone"],
        capture_output=True,
        text=True,
        timeout=WAIT_S_MAX,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    whole, node, zone = json.loads(run.stdout)
    assert (whole["exact"], node["exact"], zone["exact"]) == (1, 1, 1)
    assert (whole["killed"], node["killed"], zone["killed"]) == (0, 1, 1)
