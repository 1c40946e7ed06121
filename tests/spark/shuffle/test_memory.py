"""What batcher and debatcher hold in memory follows from their settings, however much goes through them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.shuffle.memory_job import AHEAD_BYTES, BATCH_BYTES, CHUNK_ROWS, MIB, UPLOADS_MAX, ZONES

from braidlog.spark.daemon import ARENAS_MAX
from braidlog.spark.shuffle.debatcher import READ_BYTES_MAX
from braidlog.writing.arena import REGION_BYTES

SHUFFLED_MIB = 256
CHUNK_BYTES = CHUNK_ROWS * 1024
LOADED_BYTES = 32 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="what memory a process had at most is told otherwise elsewhere")
def test_memory_is_bounded_by_settings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.shuffle.memory_job", str(tmp_path), str(SHUFFLED_MIB)]
    job = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert job.returncode == 0, job.stderr[-3000:]
    found = json.loads(job.stdout)
    rows = SHUFFLED_MIB * MIB // 1024
    assert (found["rows"], found["total"]) == (rows, rows * (rows - 1) // 2)
    held_bytes = int(len(ZONES) * 1.5 * BATCH_BYTES) + BATCH_BYTES  # rows that wait, and those that are put together
    upload_bytes = UPLOADS_MAX * BATCH_BYTES + 2 * REGION_BYTES  # which begin and end somewhere in regions
    # Allocators take up to twice what they give, and libraries load code when it is first used.
    assert found["map_bytes"] < 2 * held_bytes + upload_bytes + 4 * CHUNK_BYTES + LOADED_BYTES
    assert found["reduce_bytes"] < ARENAS_MAX * AHEAD_BYTES + READ_BYTES_MAX + 4 * CHUNK_BYTES
