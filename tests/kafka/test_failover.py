"""Control planes that stand by, as real processes: the active one dies or hangs, and the log goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import Cluster, Process, wait_until
from tests.kafka.clients import CLIENTS, Record, SteadyProducer, numbers_by_partition
from tests.kafka.conftest import QUICK_SETTINGS
from tests.kafka.topics import create_topic
from tests.postgres import running_postgres

PARTITIONS = 2
START_S_MAX = 120.0


@pytest.fixture(params=["bucket", "postgresql"])
def metadata_url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "bucket":
        yield "bucket://"
        return
    with running_postgres() as server:
        yield server.new_database()


@pytest.fixture
def cluster(tmp_path: Path, metadata_url: str) -> Iterator[Cluster]:
    # Time enough for every write: a busy machine may take long to notice that the active one is gone.
    settings = {**QUICK_SETTINGS, "request_timeout_ms": 60_000, "take_over_after_s": 20}
    with Cluster(tmp_path, metadata_url=metadata_url, settings=settings) as cluster:
        yield cluster


def start_control_planes(cluster: Cluster, count: int) -> list[Process]:
    """The first one is active, the others wait."""
    first = cluster.control("control-0", standby=True)
    return [first, *(cluster.control(f"control-{number}", wait=False, standby=True) for number in range(1, count))]


def wait_active(planes: list[Process]) -> Process:
    """The one that serves: a standby writes its ready file when it has taken over."""

    def active() -> Process | None:
        return next((plane for plane in planes if plane.is_running and plane.is_ready), None)

    return wait_until(active, timeout_s=START_S_MAX, what="a control plane that has taken over")


@pytest.mark.slow
def test_the_log_goes_on_when_the_active_control_plane_dies_or_hangs(cluster: Cluster) -> None:
    planes = start_control_planes(cluster, 3)
    agent = cluster.agent(control=planes)
    topic = create_topic(agent.address, PARTITIONS)
    producer = SteadyProducer(
        agent.address,
        topic,
        partition_count=PARTITIONS,
        per_s=100.0,
        **{"enable.idempotence": True, "socket.timeout.ms": 60_000},
    )
    wait_until(lambda: len(producer.acknowledged) > 20, what="the load")

    killed = planes[0]
    killed.kill()
    planes.remove(killed)
    second = wait_active(planes)
    before = len(producer.acknowledged)
    wait_until(lambda: len(producer.acknowledged) > before + 50, what="acknowledgements after the kill", timeout_s=120)

    second.pause()
    planes.remove(second)
    wait_active(planes)
    before = len(producer.acknowledged)
    wait_until(lambda: len(producer.acknowledged) > before + 50, what="acknowledgements after the pause", timeout_s=120)
    second.resume()
    assert second.wait(START_S_MAX) != 0  # it finds that it was deposed, and ends

    producer.stop()
    assert producer.failed == {}
    assert producer.fatal == ""
    everything = CLIENTS["confluent"].consume(agent.address, topic, producer.sent_count, partitions=range(PARTITIONS))
    found = numbers_by_partition(everything)
    for partition in range(PARTITIONS):
        assert found[partition] == list(range(partition, producer.sent_count, PARTITIONS))


def records(start: int, end: int) -> list[Record]:
    return [Record(b"%d " % number) for number in range(start, end)]


def test_a_new_machine_goes_on_with_nothing_of_the_first(cluster: Cluster) -> None:
    """Nothing of the first control plane is left but what it stored, in the bucket or on the server."""
    first = cluster.control()
    agent = cluster.agent(control=first)
    topic = create_topic(agent.address, PARTITIONS)
    offsets = CLIENTS["confluent"].produce(agent.address, topic, records(0, 50))
    first.kill()
    agent.kill()
    second = cluster.control("another-machine", take_over=True)
    other = cluster.agent("another-agent", control=second)
    assert min(CLIENTS["confluent"].produce(other.address, topic, records(50, 100))) > max(offsets)
    found = numbers_by_partition(CLIENTS["confluent"].consume(other.address, topic, 100))
    assert found == {0: list(range(100))}
