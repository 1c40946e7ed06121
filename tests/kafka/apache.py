"""Apache Kafka itself: three brokers on loopback, to see what it answers where Braidlog is asked the same.

    python -m tests.kafka.apache                      # runs the conformance suite against it
    python -m tests.kafka.apache -- COMMAND …         # runs anything else with BRAIDLOG_CONFORMANCE_BOOTSTRAP set

Ends with 0 and "SKIPPED: …" where Java, Maven or Maven Central is missing.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cluster import free_port, wait_until

JARS_SCRIPT = Path(__file__).parent / "kafka_jars.sh"
ADDRESS_VARIABLE = "BRAIDLOG_CONFORMANCE_BOOTSTRAP"
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
BROKERS = 3
START_S_MAX = 180.0
STOP_S_MAX = 60.0

_LOGGING = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
"""


class Unavailable(Exception):
    """Apache Kafka cannot be had on this machine. The text says why."""


def fetch_jars() -> Path:
    """The folder with Kafka's jars. Raises `Unavailable`."""
    done = subprocess.run([JARS_SCRIPT], capture_output=True, text=True, timeout=400, check=False)
    told = done.stdout.strip()
    if done.returncode:
        raise Unavailable(told.removeprefix("SKIPPED: ") or done.stderr.strip())
    return Path(told)


@contextmanager
def running_brokers(folder: Path, count: int = BROKERS) -> Iterator[str]:
    """So many brokers, the first of which is the controller too. Yields their addresses."""
    jars = fetch_jars()
    ports = [free_port() for _ in range(count)]
    controller = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        for node_id, port in enumerate(ports, 1):
            stack.enter_context(_running_broker(folder / str(node_id), jars, node_id, port, controller))
        for node_id, port in enumerate(ports, 1):
            what = f"a broker (see {folder / str(node_id) / 'server.log'})"
            wait_until(lambda port=port: _answers(port), what=what, timeout_s=START_S_MAX, interval_s=0.5)
        yield ",".join(f"127.0.0.1:{port}" for port in ports)


@contextmanager
def _running_broker(folder: Path, jars: Path, node_id: int, port: int, controller: str) -> Iterator[None]:
    folder.mkdir(parents=True)
    properties = folder / "server.properties"
    properties.write_text(_properties(folder, node_id, port, controller))
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    java = ["java", "-Xmx512m", f"-Dlog4j2.configurationFile=file:{logging}", "-cp", f"{jars}/*"]
    with (folder / "server.log").open("wb") as log:
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", properties],
            stdout=log,
            stderr=log,
            timeout=START_S_MAX,
            check=True,
        )
        process = subprocess.Popen([*java, "kafka.Kafka", properties], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()  # nothing of it is needed again
        process.wait(STOP_S_MAX)


def _properties(folder: Path, node_id: int, port: int, controller: str) -> str:
    is_controller = node_id == 1
    listeners = f"PLAINTEXT://127.0.0.1:{port}" + (f",CONTROLLER://{controller}" if is_controller else "")
    return "\n".join(
        (
            f"process.roles={'broker,controller' if is_controller else 'broker'}",
            f"node.id={node_id}",
            f"controller.quorum.voters=1@{controller}",
            f"listeners={listeners}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names=CONTROLLER",
            f"log.dirs={folder / 'data'}",
            # Small, so that it is soon up. All else is as Kafka has it.
            "offsets.topic.num.partitions=3",
            "transaction.state.log.num.partitions=3",
            "share.coordinator.state.topic.num.partitions=1",
            "group.initial.rebalance.delay.ms=50",
        )
    )


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def main(arguments: list[str]) -> int:
    command = arguments[1:] if arguments[:1] == ["--"] else [*_SUITE, *arguments]
    with tempfile.TemporaryDirectory(prefix="braidlog-apache-") as folder:
        try:
            with running_brokers(Path(folder)) as addresses:
                environment = {**os.environ, ADDRESS_VARIABLE: addresses.split(",")[0]}
                return subprocess.run(command, env=environment, check=False).returncode
        except Unavailable as reason:
            print(f"SKIPPED: {reason}")
            return 0


_SUITE = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/kafka/conformance"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
