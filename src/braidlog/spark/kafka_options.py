"""Kafka's options in jobs that were written for `format("kafka")`. Pure.

These are the options `kafka.…`, and others about Kafka's client. Each of them is honoured, or has no effect and is
named in a warning, or is refused by name.
"""

from collections.abc import Mapping

from braidlog.runtime.errors import InvalidSetting

PREFIX = "kafka."

HONOURED = frozenset({"kafka.bootstrap.servers", "kafka.isolation.level", "kafka.compression.type"})

_CLIENT = """
    allow.auto.create.topics auto.include.jmx.reporter check.crcs client.dns.lookup client.id client.rack
    connections.max.idle.ms default.api.timeout.ms enable.metrics.push exclude.internal.topics metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms
    request.timeout.ms retry.backoff.max.ms retry.backoff.ms send.buffer.bytes socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms
"""
_CONSUMER = """
    fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol
    group.remote.assignor heartbeat.interval.ms max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    partition.assignment.strategy session.timeout.ms
"""
_PRODUCER = """
    acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.zstd.level
    delivery.timeout.ms enable.idempotence linger.ms max.block.ms max.in.flight.requests.per.connection
    max.request.size metadata.max.idle.ms partitioner.adaptive.partitioning.enable
    partitioner.availability.timeout.ms retries
"""
_WITHOUT_EFFECT = frozenset(
    {f"{PREFIX}{name}" for name in f"{_CLIENT} {_CONSUMER} {_PRODUCER}".split()}
    | {"groupidprefix", "kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms"}
)
"""Options about how Kafka's client talks to brokers. There is no such client here, so they change nothing: every write
is durable and in the log once, checksums are always checked, and no consumer group is joined."""

_BINARY = 'Keys and values are binary: cast them, for example with selectExpr("CAST(value AS STRING)").'
_REFUSALS = {
    "auto.offset.reset": 'option("startingOffsets", …) says where to begin.',
    "enable.auto.commit": "The checkpoint of a stream records how far it has read.",
    "interceptor.classes": "There is no Kafka client that could call them.",
    "key.deserializer": _BINARY,
    "value.deserializer": _BINARY,
    "key.serializer": _BINARY,
    "value.serializer": _BINARY,
    "partitioner.class": 'Rows go where Kafka\'s clients send them by default; a column "partition" says otherwise.',
    "partitioner.ignore.keys": 'Leave the column "key" null, or give a column "partition".',
    "transactional.id": "A stream writes each micro-batch once, and completely or not at all, without it.",
}
_SECURITY = ("sasl.", "security.", "ssl.")


def check_kafka_options(options: Mapping[str, str]) -> None:
    """Refuse options that cannot be honoured. The names must be in lower case."""
    for name, value in options.items():
        if not name.startswith(PREFIX) or name in HONOURED or name in _WITHOUT_EFFECT:
            continue
        short = name.removeprefix(PREFIX)
        if short == "security.protocol" and value.strip().upper() == "PLAINTEXT":
            continue
        if short.startswith(_SECURITY):
            raise InvalidSetting(
                f"the option {name} cannot be honoured: Braidlog has no encryption and no passwords of its own",
                help="Leave it out, and keep control plane and agents in a network of their own.",
            )
        if reason := _REFUSALS.get(short):
            raise InvalidSetting(f"the option {name} cannot be honoured", help=reason)
        raise InvalidSetting(f"unknown option {name}", help="Leave it out: it would have no effect.")


def without_effect(options: Mapping[str, str]) -> list[str]:
    """Return the given options that have no effect."""
    return sorted(name for name in (each.lower() for each in options) if name in _WITHOUT_EFFECT)
