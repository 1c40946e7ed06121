"""Topics, their partitions and configs, and the cluster's configs."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TypeVar

import msgspec
from kio.schema.errors import ErrorCode

from braidlog.configs.cluster import ClusterSettings, effective_cluster_settings
from braidlog.configs.definition import InvalidConfig
from braidlog.configs.names import reason_against_topic_name
from braidlog.configs.resources import BROKER_RESOURCE, TOPIC_RESOURCE
from braidlog.configs.topic import (
    TOPIC_TYPE,
    TopicSettings,
    apply_changes,
    effective_settings,
    validate_cluster_configs,
    validate_topic_configs,
)
from braidlog.control.catalog_tables import (
    read_catalog,
    read_leader_epochs,
    write_assignments,
    write_cluster_configs,
    write_partitions,
    write_topic_configs,
    write_topics,
)
from braidlog.control.foundation import Foundation
from braidlog.control.interface import (
    AlterConfigs,
    AssignReplicas,
    ClusterConfigChanged,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    NewTopic,
    Outcome,
    PartitionGrowth,
    TopicChanged,
    TopicInfo,
    TopicOutcome,
    TopicOutcomes,
    TopicRef,
    TopicRemoved,
)
from braidlog.control.log.producers import Producers, write_departed
from braidlog.control.log.recent import RecentExtents
from braidlog.control.metadata.counters import NumberBlocks
from braidlog.control.metadata.store import Transaction
from braidlog.control.partitions import PartitionState, TopicState
from braidlog.records.leader_epochs import FIRST_EPOCH
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.limits import PARTITIONS_PER_REQUEST_MAX, PARTITIONS_PER_TOPIC_MAX

REPLICATION_FACTOR_MAX = 2**15 - 1

_PARTITION_ID_BLOCK = 1_000
_TOPICS_PER_SLICE = 200
"""How many topics of a request to plan or to change before other tasks of the event loop may run."""

T = TypeVar("T")


class _Refused(Exception):
    """An invalid request. It becomes an outcome with an error code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = int(code)


class Catalog:
    """Knows all topics. Reads are from memory.

    A change takes the state lock, is written durably, and then becomes visible and is published.
    """

    def __init__(self, foundation: Foundation, entropy: Entropy, recent: RecentExtents, producers: Producers) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._feed = foundation.feed
        self._clock = foundation.clock
        self._entropy = entropy
        self._recent = recent
        self._producers = producers
        self._partition_ids = NumberBlocks(foundation.metadata, "partition_id", _PARTITION_ID_BLOCK)
        self._metric_names: Counter[str] = Counter()
        """Topic names with `.` replaced by `_`. Two topics must not share one, because metrics could not tell them
        apart."""
        self.topics: dict[bytes, TopicState] = {}
        self.topics_by_name: dict[str, TopicState] = {}
        self.partitions: dict[int, PartitionState] = {}
        self.cluster_configs: dict[str, str] = {}
        self.revision = 0
        """Changes whenever a topic comes, goes or grows."""

        self._leader_epoch = 0
        """The cluster's newest leader epoch."""

    async def load(self) -> None:
        topics, partitions, configs = await self._metadata.read(read_catalog)
        self._leader_epoch, epochs = await self._metadata.read(read_leader_epochs)
        for topic_id, name, configs_json, replication_factor, created_ms, assignments in topics:
            states = [
                PartitionState(*row, leader_epochs=epochs.get(row[0], FIRST_EPOCH))
                for row in partitions.get(topic_id, [])
            ]
            info = TopicInfo(
                topic_id=topic_id,
                name=name,
                partition_ids=[state.partition_id for state in states],
                configs=msgspec.json.decode(configs_json, type=dict[str, str]),
                replication_factor=replication_factor,
                created_ms=created_ms,
                assignments=msgspec.json.decode(assignments, type=dict[int, list[int]]),
                leader_epoch=self._leader_epoch,
            )
            self._put(TopicState(info, states))
        self.cluster_configs = configs

    def settings(self, topic: TopicState) -> TopicSettings:
        return effective_settings(topic.info.configs, self.cluster_configs)

    def topics_of_type(self, topic_type: str) -> list[TopicState]:
        default = self.cluster_configs.get(TOPIC_TYPE, "classic")
        return [topic for topic in self.topics.values() if topic.info.configs.get(TOPIC_TYPE, default) == topic_type]

    def partition(self, topic_id: bytes, index: int) -> PartitionState | None:
        topic = self.topics.get(topic_id)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    # ── topics ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_topics(self, request: CreateTopics) -> TopicOutcomes:
        default_count = effective_cluster_settings(self.cluster_configs).num_partitions
        counts = [default_count if new.partition_count == -1 else new.partition_count for new in request.topics]
        if _are_too_many(counts):
            return _too_many_for_one_request(topic.name for topic in request.topics)
        async with self._state_lock:
            repeated = _repeated(topic.name for topic in request.topics)
            created: list[TopicState] = []
            outcomes: list[TopicOutcome] = []
            taken: Counter[str] = Counter()
            defaults = effective_cluster_settings(self.cluster_configs)
            async for new in _each_in_slices(request.topics):
                try:
                    if new.name in repeated:
                        raise _Refused(ErrorCode.invalid_request, f"Topic {new.name!r} is in the request twice.")
                    topic = await self._plan_topic(new, taken, defaults, request.validate_only)
                except _Refused as refused:
                    outcomes.append(TopicOutcome(new.name, refused.code, str(refused)))
                    continue
                taken[_metric_name(new.name)] += 1
                created.append(topic)
                outcomes.append(TopicOutcome(new.name, 0, "", topic.info))
            if created and not request.validate_only:
                await self._metadata.plan(lambda tx: write_topics(tx, created))
                async for some in _slices(created):
                    for topic in some:
                        self._put(topic)
                    self._feed.publish([TopicChanged(topic.info) for topic in some])
            return TopicOutcomes(outcomes)

    async def _plan_topic(
        self, new: NewTopic, taken: Counter[str], defaults: ClusterSettings, validate_only: bool
    ) -> TopicState:
        if reason := reason_against_topic_name(new.name):
            raise _Refused(ErrorCode.invalid_topic_exception, reason)
        if new.name in self.topics_by_name:
            raise _Refused(ErrorCode.topic_already_exists, f"Topic {new.name!r} exists already.")
        metric_name = _metric_name(new.name)
        if self._metric_names[metric_name] or taken[metric_name]:
            raise _Refused(
                ErrorCode.invalid_topic_exception,
                f"Topic {new.name!r} differs from another only in '.' and '_', which metrics cannot tell apart.",
            )
        count = defaults.num_partitions if new.partition_count == -1 else new.partition_count
        if not 0 < count <= PARTITIONS_PER_TOPIC_MAX:
            raise _Refused(
                ErrorCode.invalid_partitions, f"A topic has 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}."
            )
        factor = new.replication_factor
        if factor == -1:
            factor = defaults.default_replication_factor
        if not 0 < factor <= REPLICATION_FACTOR_MAX:
            raise _Refused(ErrorCode.invalid_replication_factor, f"The replication factor {factor} is not above 0.")
        if new.configs:
            try:
                validate_topic_configs(new.configs)
            except InvalidConfig as error:
                raise _Refused(ErrorCode.invalid_config, str(error)) from None
        topic_id = self._entropy.token(16)
        # A validation uses up no ids: its answer must not carry ids that could be taken for real ones.
        partitions = [] if validate_only else await self._new_partitions(topic_id, 0, count)
        info = TopicInfo(
            topic_id=bytes(16) if validate_only else topic_id,
            name=new.name,
            partition_ids=[-1] * count if validate_only else [state.partition_id for state in partitions],
            configs=dict(new.configs),
            replication_factor=factor,
            created_ms=self._clock.wall_ms(),
            assignments=dict(enumerate(new.assignments)),
            leader_epoch=self._leader_epoch,
        )
        return TopicState(info, partitions)

    async def _new_partitions(self, topic_id: bytes, start: int, end: int) -> list[PartitionState]:
        await self._partition_ids.reserve(end - start)
        epochs = ((self._leader_epoch, 0),)
        return [
            PartitionState(self._partition_ids.take(), topic_id, index, leader_epochs=epochs)
            for index in range(start, end)
        ]

    async def delete_topics(self, request: DeleteTopics) -> TopicOutcomes:
        async with self._state_lock:
            repeated = _repeated((ref.name, ref.topic_id) for ref in request.topics)
            removed: list[TopicState] = []
            removed_ids: set[bytes] = set()
            outcomes: list[TopicOutcome] = []
            async for ref in _each_in_slices(request.topics):
                try:
                    if (ref.name, ref.topic_id) in repeated:
                        raise _Refused(ErrorCode.invalid_request, "The topic is in the request twice.")
                    topic = self._resolve(ref)
                    if topic.info.topic_id in removed_ids:
                        raise _Refused(
                            ErrorCode.invalid_request, "The topic is in the request twice, by name and by id."
                        )
                except _Refused as refused:
                    outcomes.append(TopicOutcome(ref.name, refused.code, str(refused)))
                    continue
                removed.append(topic)
                removed_ids.add(topic.info.topic_id)
                outcomes.append(TopicOutcome(topic.info.name, 0, "", topic.info))
            if removed:
                now_ms = self._clock.wall_ms()
                # Write every producer's state first: the deletion copies it from the table.
                await self._recent.settle()

                def write(tx: Transaction) -> None:
                    ids = [topic.info.topic_id for topic in removed]
                    for topic in removed:
                        write_departed(tx, topic.info.topic_id, topic.info.name)
                    tx.executemany("DELETE FROM topics WHERE topic_id = ?", [(topic_id,) for topic_id in ids])
                    tx.executemany(
                        "UPDATE partitions SET removed_ms = ? WHERE topic_id = ?",
                        [(now_ms, topic_id) for topic_id in ids],
                    )

                await self._metadata.plan(write)
                async for some in _slices(removed):
                    for topic in some:
                        self._drop(topic)
                        self._producers.note_departed(
                            {state.partition_id: (topic.info.name, state.index) for state in topic.partitions}
                        )
                    self._feed.publish([TopicRemoved(topic.info.topic_id) for topic in some])
            return TopicOutcomes(outcomes)

    def _resolve(self, ref: TopicRef) -> TopicState:
        if ref.name:
            topic = self.topics_by_name.get(ref.name)
            if topic is None:
                raise _Refused(ErrorCode.unknown_topic_or_partition, f"There is no topic {ref.name!r}.")
            return topic
        topic = self.topics.get(ref.topic_id)
        if topic is None:
            raise _Refused(ErrorCode.unknown_topic_id, f"There is no topic with the id {ref.topic_id.hex()}.")
        return topic

    async def create_partitions(self, request: CreatePartitions) -> TopicOutcomes:
        known = [self.topics_by_name.get(growth.name) for growth in request.topics]
        if _are_too_many(
            growth.partition_count - (len(topic.partitions) if topic is not None else 0)
            for growth, topic in zip(request.topics, known, strict=True)
        ):
            return _too_many_for_one_request(growth.name for growth in request.topics)
        async with self._state_lock:
            repeated = _repeated(growth.name for growth in request.topics)
            grown: list[tuple[TopicState, list[PartitionState]]] = []
            outcomes: list[TopicOutcome] = []
            async for growth in _each_in_slices(request.topics):
                try:
                    if growth.name in repeated:
                        raise _Refused(ErrorCode.invalid_request, f"Topic {growth.name!r} is in the request twice.")
                    topic = self._check_growth(growth)
                except _Refused as refused:
                    outcomes.append(TopicOutcome(growth.name, refused.code, str(refused)))
                    continue
                info = topic.info
                if not request.validate_only:
                    added = await self._new_partitions(info.topic_id, len(topic.partitions), growth.partition_count)
                    ids = [*info.partition_ids, *(state.partition_id for state in added)]
                    assignments = info.assignments | dict(enumerate(growth.assignments or [], len(topic.partitions)))
                    info = msgspec.structs.replace(info, partition_ids=ids, assignments=assignments)
                    grown.append((TopicState(info, [*topic.partitions, *added]), added))
                outcomes.append(TopicOutcome(growth.name, 0, "", info))
            if grown:
                added_states = [state for _, added in grown for state in added]
                infos = [topic.info for topic, _ in grown]

                def write(tx: Transaction) -> None:
                    write_partitions(tx, added_states)
                    write_assignments(tx, infos)

                await self._metadata.plan(write)
                async for some in _slices(grown):
                    for topic, _ in some:
                        self._drop(self.topics[topic.info.topic_id])
                        self._put(topic)
                    self._feed.publish([TopicChanged(topic.info) for topic, _ in some])
            return TopicOutcomes(outcomes)

    def _check_growth(self, growth: PartitionGrowth) -> TopicState:
        topic = self._resolve(TopicRef(growth.name)) if growth.name else None
        if topic is None:
            raise _Refused(ErrorCode.invalid_topic_exception, "The topic has no name.")
        count = len(topic.partitions)
        if growth.partition_count <= count:
            raise _Refused(
                ErrorCode.invalid_partitions,
                f"Topic {growth.name!r} has {count} partitions; {growth.partition_count} would not be an increase.",
            )
        if growth.partition_count > PARTITIONS_PER_TOPIC_MAX:
            raise _Refused(ErrorCode.invalid_partitions, f"A topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions.")
        if growth.assignments is not None:
            _check_growth_assignments(growth.assignments, growth.partition_count - count, topic.info.replication_factor)
        return topic

    async def assign_replicas(self, request: AssignReplicas) -> Outcome:
        async with self._state_lock:
            assigned: dict[bytes, dict[int, list[int]]] = {}
            for each in request.assignments:
                if self.partition(each.topic_id, each.partition) is None:
                    return Outcome(int(ErrorCode.unknown_topic_or_partition), "A partition of the request is gone.")
                assigned.setdefault(each.topic_id, {})[each.partition] = each.replicas
            changed: dict[bytes, TopicInfo] = {}
            for topic_id, replicas in assigned.items():
                info = self.topics[topic_id].info
                changed[topic_id] = msgspec.structs.replace(info, assignments=info.assignments | replicas)
            await self._metadata.plan(lambda tx: write_assignments(tx, list(changed.values())))
            for topic_id, info in changed.items():
                self.topics[topic_id].info = info
            self._feed.publish([TopicChanged(info) for info in changed.values()])
            return Outcome(0)

    # ── configs ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def alter_configs(self, request: AlterConfigs) -> Outcome:
        async with self._state_lock:
            try:
                if _repeated(change.name for change in request.changes):
                    raise _Refused(ErrorCode.invalid_request, "A config is in the request twice.")
                if request.resource_type == TOPIC_RESOURCE:
                    await self._alter_topic(request)
                elif request.resource_type == BROKER_RESOURCE:
                    await self._alter_cluster(request)
                else:
                    raise _Refused(
                        ErrorCode.invalid_request, f"Resources of type {request.resource_type} have no configs here."
                    )
            except _Refused as refused:
                return Outcome(refused.code, str(refused))
            except InvalidConfig as error:
                return Outcome(int(ErrorCode.invalid_config), str(error))
            return Outcome(0)

    async def _alter_topic(self, request: AlterConfigs) -> None:
        if reason := reason_against_topic_name(request.resource_name):
            raise _Refused(ErrorCode.invalid_topic_exception, reason)
        topic = self._resolve(TopicRef(request.resource_name))
        configs = apply_changes(topic.info.configs, request.changes, replace=request.replace)
        validate_topic_configs(configs)
        if request.validate_only:
            return
        info = msgspec.structs.replace(topic.info, configs=configs)
        await self._metadata.plan(lambda tx: write_topic_configs(tx, info))
        topic.info = info
        self._feed.publish([TopicChanged(info)])

    async def _alter_cluster(self, request: AlterConfigs) -> None:
        if request.resource_name:
            raise _Refused(
                ErrorCode.invalid_request,
                f"Agent {request.resource_name} has no configs of its own: set them for the whole cluster (no name).",
            )
        configs = apply_changes(self.cluster_configs, request.changes, replace=request.replace)
        validate_cluster_configs(configs)
        if request.validate_only:
            return
        await self._metadata.plan(lambda tx: write_cluster_configs(tx, configs))
        self.cluster_configs = configs
        self._feed.publish([ClusterConfigChanged(dict(configs))])

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _put(self, topic: TopicState) -> None:
        self.revision += 1
        self.topics[topic.info.topic_id] = topic
        self.topics_by_name[topic.info.name] = topic
        self._metric_names[_metric_name(topic.info.name)] += 1
        for state in topic.partitions:
            self.partitions[state.partition_id] = state

    def _drop(self, topic: TopicState) -> None:
        self.revision += 1
        del self.topics[topic.info.topic_id]
        del self.topics_by_name[topic.info.name]
        metric_name = _metric_name(topic.info.name)
        self._metric_names[metric_name] -= 1
        if not self._metric_names[metric_name]:
            del self._metric_names[metric_name]
        for state in topic.partitions:
            del self.partitions[state.partition_id]


async def _slices(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """Yield the items in slices, between which other tasks of the event loop may run.

    The state lock is held, so nobody else changes anything meanwhile. What one slice does is visible at once.
    """
    for start in range(0, len(items), _TOPICS_PER_SLICE):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + _TOPICS_PER_SLICE]


async def _each_in_slices(items: Sequence[T]) -> AsyncIterator[T]:
    async for some in _slices(items):
        for item in some:
            yield item


def _check_growth_assignments(assignments: list[list[int]], added: int, replication_factor: int) -> None:
    if len(assignments) != added:
        raise _Refused(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {added} additional partition(s), but {len(assignments)} assignment(s) were specified.",
        )
    for replicas in assignments:
        if len(replicas) != replication_factor:
            raise _Refused(
                ErrorCode.invalid_replica_assignment,
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is "
                f"not consistent with previous partitions, which have {replication_factor} replica(s).",
            )


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def _are_too_many(new_partitions: Iterable[int]) -> bool:
    """Whether one request asks for too many new partitions.

    Counts that no topic may have are refused elsewhere.
    """
    return sum(count for count in new_partitions if 0 < count <= PARTITIONS_PER_TOPIC_MAX) > PARTITIONS_PER_REQUEST_MAX


def _too_many_for_one_request(names: Iterable[str]) -> TopicOutcomes:
    text = f"Excessively large number of partitions per request: at most {PARTITIONS_PER_REQUEST_MAX} can be added."
    return TopicOutcomes([TopicOutcome(name, ErrorCode.policy_violation, text) for name in names])


def _repeated(names: Iterable[object]) -> frozenset[object]:
    return frozenset(name for name, count in Counter(names).items() if count > 1)
