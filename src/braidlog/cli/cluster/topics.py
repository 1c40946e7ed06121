"""`braid topic`: create, list, describe, alter, truncate, delete."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidlog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Format, Topic, pairs
from braidlog.cli.output import OutputFormat, emit, emit_json, emit_rows, say
from braidlog.runtime.limits import PARTITIONS_PER_TOPIC_MAX

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

app = typer.Typer(
    help="Create, list, describe, alter, truncate and delete topics.", no_args_is_help=True, rich_markup_mode=None
)

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
            "--partitions",
            "-p",
            metavar="N",
            min=-1,
            max=PARTITIONS_PER_TOPIC_MAX,
            help="-1 takes the config num.partitions.",
        ),
    ] = -1,
    config: Configs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do not fail if the topic exists.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Create topics.

    \b
    Example: braid topic create orders -p 6 --config retention.ms=86400000
    """
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import NewTopic

    from braidlog.cli.errors import tell_outcomes
    from braidlog.clients.errors import failures_of, kafka_code
    from braidlog.clients.kafka_client import admin

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
    """List all topics, with the bytes that they hold.

    \b
    Example: braid topic list --format json
    """
    from braidlog.clients.kafka_client import CALL_TIMEOUT_S, admin
    from braidlog.clients.topics import topic_sizes
    from braidlog.runtime.quantities import Address, format_bytes

    client = admin(bootstrap)
    metadata = client.list_topics(timeout=CALL_TIMEOUT_S)
    sizes = topic_sizes([Address(broker.host, broker.port) for broker in metadata.brokers.values()])
    rows: list[dict[str, Any]] = [
        {"topic": name, "partitions": len(topic.partitions), "bytes": sizes.get(name, 0)}
        for name, topic in sorted(metadata.topics.items())
    ]
    if format is OutputFormat.TEXT:
        rows = [{**row, "size": format_bytes(row["bytes"])} for row in rows]
    emit_rows(format, ["topic", "partitions", "size"], rows)


@app.command()
def describe(
    topic: Topic,
    all_configs: Annotated[bool, typer.Option("--all", help="All configs, not only those that were set.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Show a topic's partitions, offsets and configs.

    \b
    Example: braid topic describe orders
    """
    from braidlog.clients.kafka_client import admin
    from braidlog.clients.topics import config_rows, partition_rows

    client = admin(bootstrap)
    partitions = partition_rows(client, topic)
    configs = config_rows(client, topic, all_configs)
    if format is OutputFormat.JSON:
        emit_json({"topic": topic, "partitions": partitions, "configs": configs})
        return
    emit_rows(format, ["partition", "leader", "log_start_offset", "high_watermark", "records"], partitions)
    if configs:
        emit("")
        emit_rows(format, ["config", "value", "from"], configs)


@app.command()
def alter(
    topic: Topic,
    set: Annotated[
        list[str] | None, typer.Option("--set", "--config", metavar="NAME=VALUE", help="Set a config; repeat for more.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="Return a config to its default.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", metavar="N", min=1, max=PARTITIONS_PER_TOPIC_MAX, help="The new total, more than now."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Change a topic's configs, or give it more partitions.

    \b
    Example: braid topic alter orders --set retention.ms=3600000 --partitions 12
    """
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions

    from braidlog.clients.errors import WrongUsage
    from braidlog.clients.kafka_client import admin, result

    changes = pairs(set, "--set")
    if not changes and not unset and partitions is None:
        raise WrongUsage("nothing to change", help="Give --set NAME=VALUE, --unset NAME or --partitions N.")
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()]
    entries += [ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in unset or []]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    client = admin(bootstrap)
    # If one change is refused, nothing may change. Configs come last, because they may delete records, and are checked
    # before partitions are added, which cannot be undone.
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
def truncate(
    topic: Annotated[str, typer.Argument(metavar="TOPIC[/PARTITION]", help="The topic, or one of its partitions.")],
    before: Annotated[
        int | None, typer.Option("--before", metavar="OFFSET", min=0, help="Delete the records below this offset.")
    ] = None,
    all_records: Annotated[bool, typer.Option("--all", help="Delete all records that are there now.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Delete a topic's oldest records, or all of its records.

    \b
    Example: braid topic truncate orders/0 --before 1000
    """
    from confluent_kafka import TopicPartition

    from braidlog.clients.errors import WrongUsage
    from braidlog.clients.kafka_client import admin, offset_bounds, partitions_of, result

    if all_records is (before is not None):
        raise WrongUsage("the command does not say which records to delete", help="Give --before OFFSET, or --all.")
    client = admin(bootstrap)
    places = partitions_of(client, topic)
    bounds = offset_bounds(client, places)
    targets = _truncation(places, bounds, before)
    if not dry_run:
        asked = [TopicPartition(place.topic, place.partition, end) for place, end in zip(places, targets, strict=True)]
        answers = client.delete_records(asked)
        for place in asked:
            result(answers, place)
    rows = [
        {
            "topic": place.topic,
            "partition": place.partition,
            "before": start,
            "after": target,
            "deleted": target - start,
        }
        for place, (start, _), target in zip(places, bounds, targets, strict=True)
    ]
    emit_rows(format, ["topic", "partition", "before", "after", "deleted"], rows)
    if dry_run:
        say("Nothing was deleted: --dry-run.")


def _truncation(places: "list[TopicPartition]", bounds: list[tuple[int, int]], before: int | None) -> list[int]:
    """Find where each partition is to begin.

    Raises, so that nothing is deleted, if one ends before that.
    """
    from braidlog.clients.errors import CommandError

    if before is None:
        return [end for _, end in bounds]
    for place, (_, end) in zip(places, bounds, strict=True):
        if before > end:
            raise CommandError(
                f"{place.topic}/{place.partition} ends at {end}, so nothing was deleted",
                help=f"Name one partition ({place.topic}/N), an offset up to its end, or --all.",
            )
    return [max(start, before) for start, _ in bounds]


@app.command()
def delete(
    names: Names,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do not fail if there is no such topic.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Delete topics and all their records.

    \b
    Example: braid topic delete orders
    """
    from confluent_kafka import KafkaError

    from braidlog.cli.errors import tell_outcomes
    from braidlog.clients.errors import failures_of, kafka_code
    from braidlog.clients.kafka_client import admin
    from braidlog.clients.topics import no_such_topic

    names = list(dict.fromkeys(names))
    client = admin(bootstrap)
    failures = failures_of(client.delete_topics(names))
    done = {name: name not in failures for name in names}
    absent = [name for name, error in failures.items() if kafka_code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART]
    for name in absent:
        del failures[name]
    if not if_exists:
        failures |= {name: no_such_topic(name) for name in absent}
    tell_outcomes(format, "topic", "deleted", done, failures, otherwise="was not there")
