"""The pages of topics: the list, one topic, and changes of it."""

from typing import TYPE_CHECKING, Any

from braidlog.clients.errors import WrongUsage
from braidlog.clients.kafka_call import call
from braidlog.clients.kafka_client import result
from braidlog.clients.topics import DESCRIBE_LOG_DIRS, LOG_DIRS_VERSION, config_rows, no_such_topic, partition_rows
from braidlog.console.desk import Arguments, Desk, page_of
from braidlog.runtime.limits import PARTITIONS_PER_TOPIC_MAX
from braidlog.runtime.quantities import Address

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

PARTITIONS_SHOWN_MAX = 1_000


async def topics(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """Give one page of topics. Only those on it are asked about."""
    known = await desk.cluster.topics()
    brokers = await desk.cluster.brokers()
    names, page = page_of(list(known), arguments)
    sizes = await desk.cluster.run(_sizes_of, list(brokers.values()), {name: known[name] for name in names})
    desk.sampler.look()
    pace = desk.sampler.pace()
    written = pace.rates_by("braidlog_upload_bytes_total", "topic") if pace is not None else {}
    rows = [
        {
            "topic": name,
            "partitions": known[name],
            "bytes": sizes.get(name, 0),
            "bytes_s": round(written.get(name, 0.0)),
        }
        for name in names
    ]
    return {"rows": rows, **page}


def _sizes_of(brokers: list[Address], topics: dict[str, int]) -> dict[str, int]:
    """Add up the bytes of some topics. Each broker reports what it leads."""
    from braidlog.wire.calls import request_types

    if not topics:
        return {}
    types = request_types(DESCRIBE_LOG_DIRS, LOG_DIRS_VERSION)
    asked = tuple(
        types.DescribableLogDirTopic(topic=name, partitions=tuple(range(count))) for name, count in topics.items()
    )
    sizes: dict[str, int] = {}
    for broker in brokers:
        answer = call(broker, DESCRIBE_LOG_DIRS, LOG_DIRS_VERSION, types.DescribeLogDirsRequest(topics=asked))
        for folder in answer.results:
            for topic in folder.topics:
                held = sum(partition.partition_size for partition in topic.partitions)
                sizes[topic.name] = sizes.get(topic.name, 0) + held
    return sizes


async def topic(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """Give a topic's partitions, offsets, size and configs."""
    name = arguments.name("topic")
    known = await desk.cluster.topics()
    if name not in known:
        desk.cluster.forget_topics()
        known = await desk.cluster.topics()
    if name not in known:
        raise no_such_topic(name)
    brokers = await desk.cluster.brokers()
    rows = await desk.cluster.admin(partition_rows, name)
    configs = await desk.cluster.admin(config_rows, name, True)
    sizes = await desk.cluster.run(_sizes_of, list(brokers.values()), {name: known[name]})
    return {
        "topic": name,
        "bytes": sizes.get(name, 0),
        "records": sum(row["records"] for row in rows),
        "partition_count": len(rows),
        "rows": rows[:PARTITIONS_SHOWN_MAX],
        "configs": configs,
    }


async def create_topic(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    name = arguments.text("topic")
    partitions = arguments.number("partitions", 1, least=1, most=PARTITIONS_PER_TOPIC_MAX)
    await desk.cluster.admin(_create, name, partitions, arguments.pairs("configs"))
    desk.cluster.forget_topics()
    return {"done": f"created {name} with {partitions} partition{'s' if partitions != 1 else ''}"}


def _create(client: "AdminClient", name: str, partitions: int, configs: dict[str, str]) -> None:
    from confluent_kafka.admin import NewTopic

    result(client.create_topics([NewTopic(name, num_partitions=partitions, config=configs)]), name)


async def delete_topic(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    name = arguments.name("topic")
    if arguments.text("confirm") != name:
        raise WrongUsage("the name was not repeated", help="Type the topic's name to delete it with all its records.")
    await desk.cluster.admin(_delete, name)
    desk.cluster.forget_topics()
    return {"done": f"deleted {name} and all its records"}


def _delete(client: "AdminClient", name: str) -> None:
    result(client.delete_topics([name]), name)


async def alter_topic(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """Set or unset configs of a topic, all or none."""
    name, changes, unset = arguments.name("topic"), arguments.pairs("set"), arguments.list("unset")
    if not changes and not unset:
        raise WrongUsage("nothing to change", help='Send {"set": {"retention.ms": "…"}} or {"unset": ["…"]}.')
    await desk.cluster.admin(_alter, name, changes, unset)
    told = [f"{key} is {value}" for key, value in changes.items()] + [f"{key} is back to its default" for key in unset]
    return {"done": f"{name}: {', '.join(told)}"}


def _alter(client: "AdminClient", name: str, changes: dict[str, str], unset: list[str]) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in changes.items()]
    entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset]
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
    result(client.incremental_alter_configs([resource]), resource)
