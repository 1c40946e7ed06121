"""The broker that the suite is run against.

`BRAIDLOG_CONFORMANCE_BOOTSTRAP=host:port pytest tests/kafka/conformance` runs it against any Kafka broker; without it a
cluster of our own is started.
"""

import os
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from tests.cluster import Cluster, wait_until
from tests.kafka.conformance.wire import Wire, ms, part
from tests.kafka.conftest import QUICK_SETTINGS

ADDRESS_VARIABLE = "BRAIDLOG_CONFORMANCE_BOOTSTRAP"

METADATA, FIND_COORDINATOR, CREATE_TOPICS = 3, 10, 19


def has_coordinator(address: str) -> bool:
    """A broker that has just started makes its own topics when it is first asked."""
    with Wire(address) as wire:
        request = part("FindCoordinatorRequest", key_type=0, coordinator_keys=("conformance",))
        return all(each.error_code == 0 for each in wire.call(FIND_COORDINATOR, request, version=4).coordinators)


def has_leaders(wire: Wire, topic: str, partitions: int) -> bool:
    """A topic may be known a moment after it was created."""
    request = part(
        "MetadataRequest",
        topics=[part("MetadataRequestTopic", name=topic, topic_id=None)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    found = wire.call(METADATA, request).topics[0]
    return len(found.partitions) == partitions and all(each.leader_id >= 0 for each in found.partitions)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get(ADDRESS_VARIABLE)
    if given:
        wait_until(lambda: has_coordinator(given), what="a group coordinator", timeout_s=60, interval_s=0.5)
        yield given
        return
    with Cluster(tmp_path_factory.mktemp("conformance"), settings=QUICK_SETTINGS) as cluster:
        yield cluster.up().address


@pytest.fixture
def wire(address: str) -> Iterator[Wire]:
    with Wire(address) as connection:
        yield connection


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names that nobody else uses, also on a broker that was there before."""
    return lambda kind: f"{kind}-{uuid4().hex[:12]}"


@pytest.fixture
def new_topic(wire: Wire, unique: Callable[[str], str]) -> Callable[..., str]:
    def create(partitions: int = 1, **configs: str) -> str:
        name = unique("conformance")
        topic = part(
            "CreatableTopic",
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            assignments=(),
            configs=[part("CreatableTopicConfig", name=key.replace("_", "."), value=v) for key, v in configs.items()],
        )
        answer = wire.call(CREATE_TOPICS, part("CreateTopicsRequest", topics=[topic], timeout=ms(10_000)))
        assert answer.topics[0].error_code == 0, answer
        wait_until(lambda: has_leaders(wire, name, partitions), what=f"a leader for {name}")
        return name

    return create
