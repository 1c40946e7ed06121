"""The Kafka client behind the commands: confluent-kafka, quiet, with deadlines."""

import socket
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from braidlog.cli.errors import CommandError
from braidlog.runtime.quantities import Address

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0
NOT_THERE_HELP = "Start one with `braid up`, or name another with --bootstrap HOST:PORT."


class _Connection:
    """Remembers the last thing that went wrong with the connection, because a timeout alone explains nothing."""

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
        **extra,
    }


def admin(bootstrap: str) -> "AdminClient":
    """An admin client that has seen the cluster: what cannot be reached is reported here, not as a timeout later.

    Keep it until its futures are done: what it has not answered yet fails when it goes.
    """
    from confluent_kafka.admin import AdminClient

    check_listening(bootstrap)
    connection = _Connection()
    client = AdminClient(_config(bootstrap, connection, {}))
    check_reachable(client, bootstrap, connection)
    return client


def producer(bootstrap: str, extra: Mapping[str, Any]) -> "Producer":
    from confluent_kafka import Producer

    check_listening(bootstrap)
    connection = _Connection()
    client = Producer(_config(bootstrap, connection, extra))
    check_reachable(client, bootstrap, connection)
    return client


def consumer(bootstrap: str, extra: Mapping[str, Any]) -> "Consumer":
    from confluent_kafka import Consumer

    check_listening(bootstrap)
    connection = _Connection()
    client = Consumer(_config(bootstrap, connection, extra))
    check_reachable(client, bootstrap, connection)
    return client


def check_listening(bootstrap: str) -> None:
    """Say at once where nobody listens: the client would go on trying until its time is up."""
    why = "no address was given"
    for place in bootstrap.split(","):
        try:
            address = Address.parse(place.strip().rpartition("://")[2])
            socket.create_connection((address.host, address.port), CALL_TIMEOUT_S / 2).close()
            return
        except ValueError as error:
            raise CommandError(f"--bootstrap {place!r} {error}", help="For example: 127.0.0.1:9092") from None
        except OSError as error:
            why = error.strerror or str(error)
    raise CommandError(f"no agent answers at {bootstrap}: {why}", help=NOT_THERE_HELP)


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
    """The answer for one of the things that were asked about; raises what the broker said of it."""
    try:
        return futures[key].result(timeout=CALL_TIMEOUT_S)
    except TimeoutError:
        raise CommandError(
            f"no answer within {CALL_TIMEOUT_S:.0f} s", help="Is the control plane running? Look at the agent's log."
        ) from None
