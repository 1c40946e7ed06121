"""A standalone cluster of Spark on this machine: a master, and workers that stand for nodes in zones.

Every worker has a loopback address, a zone and a folder of its own, so that nothing but the store, the network and
Spark connects them."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WAIT_S_MAX = 600.0
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
EXECUTOR_MIB = 512


@dataclass(frozen=True, slots=True)
class Node:
    number: int
    zone: str
    folder: Path
    """Sockets of the node's shuffle service."""

    @property
    def host(self) -> str:
        return f"127.0.0.{self.number + 2}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def standalone(folder: Path, zones: Sequence[str], *, cores: int = 1) -> Iterator[tuple[str, list[Node]]]:
    """Runs a master, and a worker for each entry of `zones`. Yields the master's address."""
    import pyspark

    from braidlog.spark.java import find_java

    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "160m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "PYSPARK_PYTHON": sys.executable,
    }
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str, **more: str) -> None:
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--webui-port", "0"]
        with open(folder / f"{len(processes)}.log", "wb") as log:
            processes.append(
                subprocess.Popen(
                    [*command, *arguments], env={**environment, **more}, stdout=log, stderr=log, start_new_session=True
                )
            )

    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    nodes = [Node(number, zone, folder / f"node{number}" / "run") for number, zone in enumerate(zones)]
    try:
        start("master.Master", "--host", "127.0.0.1", "--port", str(port), SPARK_LOCAL_IP="127.0.0.1")
        for node in nodes:
            node.folder.mkdir(parents=True)
            node.folder.chmod(0o700)
            start(
                "worker.Worker",
                *("--host", node.host, "--cores", str(cores), "--memory", f"{EXECUTOR_MIB + 400}m"),
                *("--work-dir", str(node.folder.parent / "work"), master),
                SPARK_LOCAL_IP=node.host,
                BRAIDLOG_ZONE=node.zone,
                BRAIDLOG_SHUFFLE_FOLDER=str(node.folder),
            )
        yield master, nodes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for node in nodes:
            for service in services_of(node):
                os.kill(service, signal.SIGTERM)


def session_on(master: str, count: int, config: Mapping[str, str] | None = None) -> Any:
    """A session with one executor on each worker. All of them are there."""
    from braidlog.spark import create_session

    session = create_session(
        master,
        quick=True,
        progress=False,
        config={
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": f"{EXECUTOR_MIB}m",
            **(config or {}),
        },
    )
    deadline_s = time.monotonic() + WAIT_S_MAX
    while session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < count + 1:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"fewer than {count} executors after {WAIT_S_MAX} s")
        time.sleep(0.1)
    return session


def services_of(node: Node) -> list[int]:
    """The processes of a node's shuffle service."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                is_service = b"shuffle.service" in (path / "cmdline").read_bytes()
                if is_service and f"={node.folder}\0".encode() in (path / "environ").read_bytes() + b"\0":
                    found.append(int(path.name))
            except OSError:
                continue  # it has ended
    return found
