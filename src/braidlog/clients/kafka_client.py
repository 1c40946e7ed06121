"""The Kafka client behind the commands: confluent-kafka, quiet, with deadlines."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from braidlog.clients.errors import CommandError
from braidlog.clients.login import client_properties
from braidlog.clients.reachability import check_listens
from braidlog.runtime.quantities import Address

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0
NOT_THERE_HELP = "Start one with `braid up`, or name another with --bootstrap HOST:PORT."


class _Connection:
    """Remembers a connection's last error: a timeout alone explains nothing."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None

    def __call__(self, error: "KafkaError") -> None:
        self.error = error


def _config(bootstrap: str, connection: _Connection, extra: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "braid",
        "error_cb": connection,
        "log_level": 0,
        "socket.connection.setup.timeout.ms": 5_000,
        "broker.address.family": "any",
        **client_properties(),
        **extra,
    }


def admin(bootstrap: str) -> "AdminClient":
    """Create an admin client, and fail if the cluster cannot be reached.

    Keep the client until its futures are done: they fail when it is collected.
    """
    from confluent_kafka.admin import AdminClient

    client: AdminClient = _connected(AdminClient, bootstrap, {})
    return client


def producer(bootstrap: str, extra: Mapping[str, Any]) -> "Producer":
    from confluent_kafka import Producer

    client: Producer = _connected(Producer, bootstrap, extra)
    return client


def consumer(bootstrap: str, extra: Mapping[str, Any]) -> "Consumer":
    from confluent_kafka import Consumer

    client: Consumer = _connected(Consumer, bootstrap, extra)
    return client


def _connected(kind: Callable[[dict[str, Any]], Any], bootstrap: str, extra: Mapping[str, Any]) -> Any:
    """Create a client, and fail here if the cluster cannot be reached.

    Otherwise it would fail later with a timeout.
    """
    check_listening(bootstrap)
    connection = _Connection()
    client = kind(_config(bootstrap, connection, extra))
    check_reachable(client, bootstrap, connection)
    return client


def check_listening(bootstrap: str) -> Address:
    """Give the first address that listens.

    Fails at once if none does: the client would retry until its timeout.
    """
    return check_listens(bootstrap, "--bootstrap", "no agent answers at", NOT_THERE_HELP)


def check_reachable(client: Any, bootstrap: str, connection: _Connection) -> None:
    from confluent_kafka import KafkaException

    try:
        client.list_topics(timeout=CALL_TIMEOUT_S / 2)
    except KafkaException as error:
        why = connection.error.str() if connection.error is not None else str(error.args[0].str())
        raise CommandError(
            f"no agent answers at {bootstrap}: {why}",
            help=NOT_THERE_HELP,
        ) from error


def result(futures: Mapping[Any, "Future[T]"], key: Any) -> T:
    """Wait for the answer about `key`, and raise its error if it is one."""
    try:
        return futures[key].result(timeout=CALL_TIMEOUT_S)
    except TimeoutError:
        raise CommandError(
            f"no answer within {CALL_TIMEOUT_S:.0f} s", help="Is the control plane running? Look at the agent's log."
        ) from None


def partitions_of(client: "AdminClient", name: str) -> list["TopicPartition"]:
    """List the partitions of TOPIC, or the one of TOPIC/PARTITION."""
    from confluent_kafka import TopicPartition

    topic, slash, partition = name.partition("/")
    metadata = client.list_topics(timeout=CALL_TIMEOUT_S).topics.get(topic)
    if metadata is None:
        raise CommandError(f"there is no topic {topic!r}", help="`braid topic list` shows the topics.")
    if not slash:
        return [TopicPartition(topic, number) for number in sorted(metadata.partitions)]
    if not (partition.isascii() and partition.isdecimal()) or int(partition) not in metadata.partitions:
        raise CommandError(
            f"{topic} has no partition {partition!r}", help=f"`braid topic describe {topic}` shows its partitions."
        )
    return [TopicPartition(topic, int(partition))]


def offset_bounds(client: "AdminClient", places: list["TopicPartition"]) -> list[tuple[int, int]]:
    """Give each partition's first offset and its end offset."""
    from confluent_kafka.admin import OffsetSpec

    starts = client.list_offsets(dict.fromkeys(places, OffsetSpec.earliest()))
    ends = client.list_offsets(dict.fromkeys(places, OffsetSpec.latest()))
    return [(result(starts, place).offset, result(ends, place).offset) for place in places]
