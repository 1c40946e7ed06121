"""`braid topic`: create, list, describe, alter, delete."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidlog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Format, Topic, pairs
from braidlog.cli.output import OutputFormat, emit, emit_json, emit_rows, say
from braidlog.runtime.limits import PARTITIONS_PER_TOPIC_MAX

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True, rich_markup_mode=None)

Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="The topics' names.")]
Configs = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="A topic config such as retention.ms; repeat for more."),
]


@app.command()
def create(
    names: Names,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", min=-1, max=PARTITIONS_PER_TOPIC_MAX, help="-1: as many as num.partitions says."
        ),
    ] = -1,
    config: Configs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is there already is fine.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Create topics.

    Example: braid topic create orders -p 6 --config retention.ms=86400000
    """
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import NewTopic

    from braidlog.cli.errors import failures_of, kafka_code, tell_outcomes
    from braidlog.cli.kafka import admin

    configs = pairs(config, "--config")
    names = list(dict.fromkeys(names))
    client = admin(bootstrap)
    failures = failures_of(
        client.create_topics([NewTopic(name, num_partitions=partitions, config=configs) for name in names])
    )
    done = {name: name not in failures for name in names}
    if if_not_exists:
        failures = {n: error for n, error in failures.items() if kafka_code(error) != KafkaError.TOPIC_ALREADY_EXISTS}
    tell_outcomes(format, "topic", "created", done, failures, otherwise="was there already")


@app.command("list")
def list_topics(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, format: Format = OutputFormat.TEXT) -> None:
    """List all topics.

    Example: braid topic list --format json
    """
    from braidlog.cli.kafka import CALL_TIMEOUT_S, admin

    client = admin(bootstrap)
    metadata = client.list_topics(timeout=CALL_TIMEOUT_S)
    rows = [{"topic": name, "partitions": len(topic.partitions)} for name, topic in sorted(metadata.topics.items())]
    emit_rows(format, ["topic", "partitions"], rows)


@app.command()
def describe(
    topic: Topic,
    all_configs: Annotated[bool, typer.Option("--all", help="All configs, not only those that were set.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Show a topic's partitions, offsets and configs.

    Example: braid topic describe orders
    """
    from braidlog.cli.kafka import admin

    client = admin(bootstrap)
    partitions = _partitions(client, topic)
    configs = _configs(client, topic, all_configs)
    if format is OutputFormat.JSON:
        emit_json({"topic": topic, "partitions": partitions, "configs": configs})
        return
    emit_rows(format, ["partition", "leader", "log_start_offset", "high_watermark", "records"], partitions)
    if configs:
        emit("")
        emit_rows(format, ["config", "value", "from"], configs)


def _partitions(client: "AdminClient", topic: str) -> list[dict[str, Any]]:
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    from braidlog.cli.kafka import CALL_TIMEOUT_S, result

    # Asked by name alone, a topic that is not there would be created where auto creation is on.
    metadata = client.list_topics(timeout=CALL_TIMEOUT_S).topics.get(topic)
    if metadata is None:
        raise _no_such_topic(topic)
    if metadata.error is not None:
        raise KafkaException(metadata.error)
    keys = [TopicPartition(topic, number) for number in sorted(metadata.partitions)]
    earliest = client.list_offsets({key: OffsetSpec.earliest() for key in keys})
    latest = client.list_offsets({key: OffsetSpec.latest() for key in keys})
    rows = []
    for key in keys:
        start, end = result(earliest, key).offset, result(latest, key).offset
        rows.append(
            {
                "partition": key.partition,
                "leader": metadata.partitions[key.partition].leader,
                "log_start_offset": start,
                "high_watermark": end,
                "records": end - start,
            }
        )
    return rows


def _no_such_topic(topic: str) -> Exception:
    from braidlog.cli.errors import CommandError

    return CommandError(
        f"there is no topic {topic!r}", help="`braid topic list` shows the topics; `braid topic create` makes one."
    )


def _configs(client: "AdminClient", topic: str, all_configs: bool) -> list[dict[str, Any]]:
    from confluent_kafka.admin import ConfigResource, ConfigSource

    from braidlog.cli.kafka import result

    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = result(client.describe_configs([resource]), resource)
    return [
        {"config": name, "value": entry.value, "from": ConfigSource(entry.source).name.lower().replace("_", " ")}
        for name, entry in sorted(entries.items())
        if all_configs or entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    ]


@app.command()
def alter(
    topic: Topic,
    set: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a config.")] = None,
    unset: Annotated[list[str] | None, typer.Option("--unset", metavar="NAME", help="Back to the default.")] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, max=PARTITIONS_PER_TOPIC_MAX, help="The new total, more than now."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Change a topic's configs, or give it more partitions.

    Example: braid topic alter orders --set retention.ms=3600000 --partitions 12
    """
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions

    from braidlog.cli.errors import CommandError
    from braidlog.cli.kafka import admin, result

    changes = pairs(set, "--set")
    if not changes and not unset and partitions is None:
        raise CommandError("nothing to change", help="Give --set NAME=VALUE, --unset NAME or --partitions N.")
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()]
    entries += [ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in unset or []]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    client = admin(bootstrap)
    # Where one thing is refused, nothing is to change: the configs come last, because they may delete records, and are
    # checked before there are more partitions, which cannot be taken back.
    if partitions is not None:
        if entries:
            result(client.incremental_alter_configs([resource], validate_only=True), resource)
        result(client.create_partitions([NewPartitions(topic, partitions)]), topic)
    if entries:
        result(client.incremental_alter_configs([resource]), resource)
    if format is OutputFormat.JSON:
        emit_json({"topic": topic, "set": changes, "unset": unset or [], "partitions": partitions})
    else:
        say(f"{topic}: altered")


@app.command()
def delete(
    names: Names,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A topic that is not there is fine.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Delete topics and all their records.

    Example: braid topic delete orders
    """
    from confluent_kafka import KafkaError

    from braidlog.cli.errors import failures_of, kafka_code, tell_outcomes
    from braidlog.cli.kafka import admin

    names = list(dict.fromkeys(names))
    client = admin(bootstrap)
    failures = failures_of(client.delete_topics(names))
    done = {name: name not in failures for name in names}
    absent = [name for name, error in failures.items() if kafka_code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART]
    for name in absent:
        del failures[name]
    if not if_exists:
        failures |= {name: _no_such_topic(name) for name in absent}
    tell_outcomes(format, "topic", "deleted", done, failures, otherwise="was not there")
