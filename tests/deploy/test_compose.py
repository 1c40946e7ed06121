"""The processes of the compose file, started here with the same arguments but for ports and the store."""

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.cluster import free_port, wait_until
from tests.deploy.files import metrics_named, services

from braidlog.node.children import BraidProcess, read_figures
from braidlog.runtime.clock import SystemClock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

START_ORDER = ["control-1", "agent-a", "agent-b", "agent-c", "worker", "console"]


class Moved:
    """Gives each port of the file a free one."""

    def __init__(self) -> None:
        self._ports: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        return re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{self._free(found[1])}", text)

    def _free(self, port: str) -> int:
        if port not in self._ports:
            self._ports[port] = free_port()
        return self._ports[port]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BraidProcess]]:
    folder: Path = tmp_path_factory.mktemp("compose")
    moved, found = Moved(), {}
    with ExitStack() as stack:
        for name in START_ORDER:
            service = services()[name]
            arguments = [moved(each) for each in service["command"]]
            control = ["--control", moved(service["environment"]["BRAIDLOG_CONTROL"])]
            if service["command"][0] != "console":
                arguments += ["--store", f"file://{folder}/store"]
            if service["command"][0] != "control":
                arguments += control
            found[name] = stack.enter_context(BraidProcess(name, arguments, folder, SystemClock()))
        standby = BraidProcess(
            "control-2",
            [*map(moved, services()["control-2"]["command"]), "--store", f"file://{folder}/store"],
            folder,
            SystemClock(),
        )
        standby.start()
        stack.push(standby.__exit__)
        yield found


def ask(cluster: dict[str, BraidProcess], path: str) -> Any:
    address = cluster["console"].addresses["console"]
    with urllib.request.urlopen(f"http://{address}{path}?format=json", timeout=60) as answer:
        return json.load(answer)


def test_three_zones_and_a_standby_run_and_the_console_shows_them(cluster: dict[str, BraidProcess]) -> None:
    producer = Producer({"bootstrap.servers": cluster["agent-b"].addresses["kafka"]})
    producer.produce("orders", "one")
    assert producer.flush(120) == 0
    assert sorted(row["zone"] for row in ask(cluster, "/agents")["rows"]) == ["zone-a", "zone-b", "zone-c"]
    assert [row["topic"] for row in ask(cluster, "/topics")["rows"]] == ["orders"]
    wait_until(lambda: len(ask(cluster, "/")["standbys"]) == 1, what="a control plane that stands by")


def test_every_metric_that_rules_and_panels_name_is_served(cluster: dict[str, BraidProcess]) -> None:
    served: set[str] = set()
    for name in ("agent-a", "agent-b", "agent-c", "control-1"):
        served |= {series.partition("{")[0] for series in read_figures(cluster[name].addresses["metrics"])}
        with urllib.request.urlopen(f"http://{cluster[name].addresses['metrics']}/metrics", timeout=60) as answer:
            served |= set(re.findall(r"^# TYPE (\w+) ", answer.read().decode(), re.MULTILINE))
    assert metrics_named() <= served, metrics_named() - served
