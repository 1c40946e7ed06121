"""`braid demo` as a whole."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_the_demo_loses_and_doubles_nothing() -> None:
    command = [sys.executable, "-m", "braidlog", "demo", "--quick", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    account = json.loads(done.stdout)
    assert account["ok"]
    assert account["records_in"] == account["records_out"] == 30_000
    assert account["missing"] == account["duplicates"] == 0
    assert account["puts"] >= account["objects"] > 0
