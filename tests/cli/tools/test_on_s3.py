"""Commands on a real S3 server."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.running import braid
from typer.testing import CliRunner

from braidlog.cli.main import app
from braidlog.node.children import BraidProcess
from braidlog.objects.open import open_store
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy


@pytest.mark.slow
def test_doctor_is_content_with_s3(seaweed: str, tmp_path: Path) -> None:
    metadata = f"metadata_url=sqlite://{tmp_path}/meta.db"
    arguments = ["doctor", "--format", "json", "-s", f"store_url={seaweed}", "-s", metadata, "-s", "listen=127.0.0.1:0"]
    findings = json.loads(CliRunner().invoke(app, arguments).stdout)
    unhappy = {check["check"]: check["detail"] for check in findings["checks"] if not check["ok"]}
    assert set(unhappy) <= {"metadata durable"}, unhappy  # where temporary folders are in memory


@pytest.mark.slow
async def test_records_and_their_object_on_s3(seaweed: str, tmp_path: Path) -> None:
    arguments = ["up", "--listen", "127.0.0.1:0", "--metrics", "off", "--store", seaweed]
    arguments += ["--metadata", f"sqlite://{tmp_path}/meta.db"]
    with BraidProcess("up", arguments, tmp_path, SystemClock()) as process:
        braid(process.addresses["kafka"], "produce", "on-s3", given="one\ntwo\n")
        assert len(braid(process.addresses["kafka"], "consume", "on-s3", "--exit")) == 2
    store = open_store(seaweed, clock=SystemClock(), entropy=SystemEntropy())
    keys = [found.key for found in (await store.list("data/")).objects]
    await store.close()
    bucket, _, options = seaweed.partition("?")
    url = f"{bucket.rstrip('/')}/{keys[0]}?{options}"
    command = [sys.executable, "-m", "braidlog", "inspect", url, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["record_count"] in {1, 2}
