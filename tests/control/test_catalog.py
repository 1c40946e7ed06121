"""The catalog: topics, partitions and configs, and requests about many topics at once."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from tests.control.driver import Plane, create_topic, start_plane

from braidlog.control import catalog
from braidlog.control.catalog_tables import LEADER_EPOCH
from braidlog.control.interface import (
    AlterConfigs,
    ConfigChange,
    ControlPlane,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    NewTopic,
    PartitionGrowth,
    SnapshotRequest,
    TopicRef,
)
from braidlog.control.metadata.counters import write_counter
from braidlog.control.metadata.store import Transaction

TOPICS = 100
SLICE = 10


@pytest.mark.parametrize("validate_only", [True, False])
async def test_many_topics_are_planned_in_slices(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, validate_only: bool
) -> None:
    monkeypatch.setattr(catalog, "_TOPICS_PER_SLICE", SLICE)
    planned: list[int] = []
    plan = plane.service.parts.catalog._plan_topic
    seen = 0

    async def counted(*arguments: object) -> object:
        nonlocal seen
        seen += 1
        return await plan(*arguments)  # type: ignore[arg-type]

    async def watch() -> None:
        while True:
            planned.append(seen)
            await asyncio.sleep(0)

    monkeypatch.setattr(plane.service.parts.catalog, "_plan_topic", counted)
    watching = asyncio.create_task(watch())
    request = CreateTopics([NewTopic(f"topic-{number}", -1) for number in range(TOPICS)], validate_only=validate_only)
    answer = await plane.service.create_topics(request)
    watching.cancel()
    assert [outcome.error_code for outcome in answer.outcomes] == [0] * TOPICS
    steps = [later - earlier for earlier, later in pairwise(planned)]
    assert max(steps) <= SLICE


async def test_many_topics_change_in_slices(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run in between, and see each slice in memory and in the feed at once."""
    monkeypatch.setattr(catalog, "_TOPICS_PER_SLICE", SLICE)
    parts = plane.service.parts
    seen: list[tuple[int, int, int]] = []

    async def watch() -> None:
        while True:
            seen.append((len(parts.catalog.topics), len(parts.catalog.partitions), parts.feed.position.revision))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    names = [f"topic-{number}" for number in range(TOPICS)]
    await plane.service.create_topics(CreateTopics([NewTopic(name, 1) for name in names]))
    await plane.service.create_partitions(CreatePartitions([PartitionGrowth(name, 2) for name in names]))
    await plane.service.delete_topics(DeleteTopics([TopicRef(name) for name in names]))
    watching.cancel()
    assert (len(parts.catalog.topics), len(parts.catalog.partitions)) == (0, 0)
    changes = [[abs(then - now) for then, now in zip(*pair, strict=True)] for pair in pairwise(seen)]
    assert max(map(max, changes)) <= 2 * SLICE
    assert all(bool(topics or partitions) == bool(events) for topics, partitions, events in changes)


async def test_topics_are_created_grown_and_deleted(control: ControlPlane) -> None:
    topic = await create_topic(control, "a.b", 2, retention_ms="5")
    assert len(set(topic.partition_ids)) == 2
    assert topic.configs == {"retention.ms": "5"}
    grown = (await control.create_partitions(CreatePartitions([PartitionGrowth("a.b", 3)]))).outcomes[0]
    assert grown.topic is not None
    assert grown.topic.partition_ids[:2] == topic.partition_ids
    deleted = await control.delete_topics(DeleteTopics([TopicRef("", topic.topic_id)]))
    assert [outcome.error_code for outcome in deleted.outcomes] == [0]
    again = await create_topic(control, "a.b", 1)
    assert again.topic_id != topic.topic_id
    assert not set(again.partition_ids) & set(grown.topic.partition_ids)


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic("", 1), 17),
        (NewTopic("..", 1), 17),
        (NewTopic("a b", 1), 17),
        (NewTopic("a" * 250, 1), 17),
        (NewTopic("taken", 1), 36),
        (NewTopic("with_dot", 1), 17),
        (NewTopic("new", 0), 37),
        (NewTopic("new", -2), 37),
        (NewTopic("new", 100_001), 37),
        (NewTopic("new", 1, 0), 38),
        (NewTopic("new", 1, -2), 38),
        (NewTopic("new", 1, 3), 0),
        (NewTopic("new", -1, -1), 0),
        (NewTopic("new", 1, configs={"no.such": "1"}), 40),
        (NewTopic("new", 1, configs={"retention.ms": "soon"}), 40),
    ],
)
async def test_wrong_topics_get_kafkas_codes(control: ControlPlane, new: NewTopic, code: int) -> None:
    await create_topic(control, "taken")
    await create_topic(control, "with.dot")
    for validate_only in (True, False):
        answer = await control.create_topics(CreateTopics([new], validate_only))
        assert answer.outcomes[0].error_code == code
        assert bool(answer.outcomes[0].error_message) == (code != 0)


async def test_a_topic_named_twice_in_one_request_is_refused(control: ControlPlane) -> None:
    answer = await control.create_topics(CreateTopics([NewTopic("x", 1), NewTopic("x", 2), NewTopic("y", 1)]))
    assert [outcome.error_code for outcome in answer.outcomes] == [42, 42, 0]
    y = answer.outcomes[2].topic
    assert y is not None
    answer = await control.delete_topics(DeleteTopics([TopicRef("y"), TopicRef("", y.topic_id), TopicRef("x")]))
    assert [outcome.error_code for outcome in answer.outcomes] == [0, 42, 3]
    answer = await control.delete_topics(DeleteTopics([TopicRef("", y.topic_id)]))
    assert answer.outcomes[0].error_code == 100


async def test_partitions_can_only_grow(control: ControlPlane) -> None:
    await create_topic(control, "t", 2)
    wanted = [PartitionGrowth("t", 2), PartitionGrowth("none", 3)]
    answer = await control.create_partitions(CreatePartitions(wanted))
    assert [outcome.error_code for outcome in answer.outcomes] == [37, 3]


async def test_configs_are_altered_step_by_step_or_as_a_whole(control: ControlPlane) -> None:
    await create_topic(control, "t", 1, retention_ms="5")

    async def alter(name: str, *changes: ConfigChange, kind: int = 2, **options: bool) -> int:
        return (await control.alter_configs(AlterConfigs(kind, name, list(changes), **options))).error_code

    assert await alter("t", ConfigChange("cleanup.policy", 2, "compact")) == 0
    assert await alter("t", ConfigChange("retention.ms", 2, "1")) == 40
    assert await alter("t", ConfigChange("retention.ms", 0, "x"), validate_only=True) == 40
    assert await alter("t", ConfigChange("retention.ms", 0, "7"), validate_only=True) == 0
    assert await alter("t", ConfigChange("retention.ms", 0, "7"), ConfigChange("retention.ms", 1, None)) == 42
    assert await alter("none", ConfigChange("retention.ms", 0, "7")) == 3
    assert await alter("1", ConfigChange("num.partitions", 0, "7"), kind=4) == 42
    assert await alter("", ConfigChange("num.partitions", 0, "7"), kind=4) == 0
    snapshot = await control.snapshot(SnapshotRequest())
    assert snapshot.topics[0].configs == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    assert snapshot.cluster_configs == {"num.partitions": "7"}
    assert len((await create_topic(control, "wide", -1)).partition_ids) == 7
    assert await alter("t", ConfigChange("retention.bytes", 0, "1"), replace=True) == 0
    snapshot = await control.snapshot(SnapshotRequest())
    assert snapshot.topics[0].configs == {"retention.bytes": "1"}


async def test_partitions_keep_their_leader_epochs_and_new_ones_begin_in_the_newest(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    plane = await start_plane(url)
    await create_topic(plane.service, "first")

    def restore(tx: Transaction) -> None:
        write_counter(tx, LEADER_EPOCH, 2)
        tx.execute("INSERT INTO leader_epochs SELECT partition_id, 2, 7 FROM partitions")

    await plane.metadata.transact(restore)
    await plane.service.close()
    plane = await start_plane(url, bucket=plane.bucket)
    await create_topic(plane.service, "second")
    for _ in range(2):
        snapshot = await plane.service.snapshot(SnapshotRequest())
        assert [each.leader_epochs for each in snapshot.bounds] == [((0, 0), (2, 7)), ((2, 0),)]
        assert [each.leader_epoch for each in snapshot.topics] == [2, 2]
        await plane.service.close()
        plane = await start_plane(url, bucket=plane.bucket)
    await plane.service.close()
