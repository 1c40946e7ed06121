"""The broker that the suite is run against.

`BRAIDLOG_CONFORMANCE_BOOTSTRAP=host:port pytest tests/kafka/conformance` runs it against any Kafka broker; without it a
cluster of our own is started.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest
from tests.cluster import Cluster, wait_until
from tests.kafka.conformance.wire import Wire, ms, part
from tests.kafka.conftest import QUICK_SETTINGS

ADDRESS_VARIABLE = "BRAIDLOG_CONFORMANCE_BOOTSTRAP"

SETTINGS: dict[str, object] = {**QUICK_SETTINGS, "cache_listen": "off", "group_min_session_timeout_ms": 6_000}
"""Each shard caches for itself what it has once read, so that no answer depends on where a batch is read from."""
BROKERS = 3
LIST_OFFSETS, METADATA, FIND_COORDINATOR, CREATE_TOPICS = 2, 3, 10, 19


GROUP, TRANSACTION = 0, 1
CANDIDATES = 16
"""Names to choose from, so that a broker among several is likely to be the coordinator of one."""


def coordinators(wire: Wire, key_type: int, names: list[str]) -> dict[str, int]:
    """The broker that each name is sent to; without those that have none yet."""
    request = part("FindCoordinatorRequest", key_type=key_type, coordinator_keys=names)
    found = wire.call(FIND_COORDINATOR, request, version=4).coordinators
    return {each.key: each.node_id for each in found if each.error_code == 0}


def has_coordinators(address: str) -> bool:
    """A broker that has just started makes its own topics when it is first asked."""
    with Wire(address) as wire:
        return all(len(coordinators(wire, kind, ["conformance"])) == 1 for kind in (GROUP, TRANSACTION))


def coordinated_at(wire: Wire, node_id: int, key_type: int, kind: str) -> str:
    """A name that nobody uses, and that is sent to this broker."""
    while True:
        names = [f"{kind}-{uuid4().hex[:12]}" for _ in range(CANDIDATES)]
        for name, coordinator in coordinators(wire, key_type, names).items():
            if coordinator == node_id:
                return name


def brokers(wire: Wire) -> dict[int, str]:
    """Their addresses, by node id."""
    request = part("MetadataRequest", topics=(), allow_auto_topic_creation=False)
    return {each.node_id: f"{each.host}:{each.port}" for each in wire.call(METADATA, request, version=7).brokers}


def is_led_here(wire: Wire, topic: str, partitions: int) -> bool:
    """A topic may be known, and led, a moment after it was created."""
    asked = [part("ListOffsetsPartition", partition_index=index, timestamp=-1) for index in range(partitions)]
    topics = [part("ListOffsetsTopic", name=topic, partitions=asked)]
    request = part("ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=topics, timeout=ms(10_000))
    return all(each.error_code == 0 for each in wire.call(LIST_OFFSETS, request).topics[0].partitions)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get(ADDRESS_VARIABLE)
    with ExitStack() as stack:
        if given:
            at = given
        else:
            cluster = stack.enter_context(Cluster(tmp_path_factory.mktemp("conformance"), settings=SETTINGS))
            at = cluster.agent(control=cluster.control(), shards=BROKERS).address
        wait_until(lambda: has_coordinators(at), what="both coordinators", timeout_s=60, interval_s=0.5)
        yield at


@pytest.fixture
def wire(address: str) -> Iterator[Wire]:
    with Wire(address) as connection:
        yield connection


@pytest.fixture
def home(wire: Wire, address: str) -> int:
    """The node id of the broker that `wire` speaks to."""
    return next(node_id for node_id, at in brokers(wire).items() if at == address)


@pytest.fixture
def unique(wire: Wire, home: int) -> Callable[[str], str]:
    """Names that nobody else uses, also on a broker that was there before.

    Groups of these names belong to the broker at hand, so that it need not send anybody elsewhere.
    """
    return lambda kind: coordinated_at(wire, home, GROUP, kind)


@pytest.fixture
def new_topic(wire: Wire, home: int) -> Callable[..., str]:
    """Creates topics that the broker at hand leads."""

    def create(partitions: int = 1, **configs: str) -> str:
        name = f"conformance-{uuid4().hex[:12]}"
        topic = part(
            "CreatableTopic",
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                part("CreatableReplicaAssignment", partition_index=index, broker_ids=(home,))
                for index in range(partitions)
            ],
            configs=[part("CreatableTopicConfig", name=key.replace("_", "."), value=v) for key, v in configs.items()],
        )
        answer = wire.call(CREATE_TOPICS, part("CreateTopicsRequest", topics=[topic], timeout=ms(10_000)))
        assert answer.topics[0].error_code == 0, answer
        wait_until(lambda: is_led_here(wire, name, partitions), what=f"a leader for {name}")
        return name

    return create
