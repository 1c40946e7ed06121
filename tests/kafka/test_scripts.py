"""Clients of other languages, by scripts that take them from their registries, and say so where they cannot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.sh")))
def test_script(script: str, bootstrap: str) -> None:
    done = subprocess.run(
        [SCRIPTS / script, bootstrap],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    if "SKIPPED:" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "OK:" in done.stdout
