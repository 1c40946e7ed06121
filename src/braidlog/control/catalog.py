"""Topics, their partitions and configs, and the cluster's configs."""

import asyncio
from collections import Counter
from collections.abc import Iterable

import msgspec

from braidlog.control.cluster_config import effective_cluster_settings
from braidlog.control.config_definition import InvalidConfig
from braidlog.control.counters import NumberBlocks
from braidlog.control.error_codes import ErrorCode
from braidlog.control.feed import Feed
from braidlog.control.interface import (
    AlterConfigs,
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
from braidlog.control.metadata import MetadataStore, Transaction
from braidlog.control.partitions import PartitionState, TopicState
from braidlog.control.topic_config import (
    TOPIC_TYPE,
    TopicSettings,
    apply_changes,
    effective_settings,
    validate_cluster_configs,
    validate_topic_configs,
)
from braidlog.control.topic_names import reason_against_topic_name
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.limits import PARTITIONS_PER_TOPIC_MAX

REPLICATION_FACTOR_MAX = 2**15 - 1
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4

_PARTITION_ID_BLOCK = 1_000


class _Refused(Exception):
    """A wrong request, on its way to becoming an outcome."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = int(code)


class Catalog:
    """All reads are from memory. Changes take `turn`, are written durably, then become visible and are published."""

    def __init__(self, metadata: MetadataStore, turn: asyncio.Lock, feed: Feed, clock: Clock, entropy: Entropy) -> None:
        self._metadata = metadata
        self._turn = turn
        self._feed = feed
        self._clock = clock
        self._entropy = entropy
        self._partition_ids = NumberBlocks(metadata, "partition_id", _PARTITION_ID_BLOCK)
        self._metric_names: Counter[str] = Counter()
        """Names with `.` turned into `_`: two topics must not share one, because metrics could not tell them apart."""
        self.topics: dict[bytes, TopicState] = {}
        self.topics_by_name: dict[str, TopicState] = {}
        self.partitions: dict[int, PartitionState] = {}
        self.cluster_configs: dict[str, str] = {}
        self.revision = 0
        """Changes whenever a topic comes, goes or grows."""

    async def load(self) -> None:
        topics, partitions, configs = await self._metadata.read(_read_catalog)
        for topic_id, name, configs_json, replication_factor, created_ms in topics:
            states = [PartitionState(*row) for row in partitions.get(topic_id, [])]
            info = TopicInfo(
                topic_id=topic_id,
                name=name,
                partition_ids=[state.partition_id for state in states],
                configs=msgspec.json.decode(configs_json, type=dict[str, str]),
                replication_factor=replication_factor,
                created_ms=created_ms,
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
        async with self._turn:
            repeated = _repeated(topic.name for topic in request.topics)
            created: list[TopicState] = []
            outcomes: list[TopicOutcome] = []
            taken: Counter[str] = Counter()
            for new in request.topics:
                try:
                    if new.name in repeated:
                        raise _Refused(ErrorCode.INVALID_REQUEST, f"Topic {new.name!r} is in the request twice.")
                    topic = await self._plan_topic(new, taken, request.validate_only)
                except _Refused as refused:
                    outcomes.append(TopicOutcome(new.name, refused.code, str(refused)))
                    continue
                taken[_metric_name(new.name)] += 1
                created.append(topic)
                outcomes.append(TopicOutcome(new.name, 0, "", topic.info))
            if created and not request.validate_only:
                await self._metadata.transact(lambda tx: _write_topics(tx, created))
                for topic in created:
                    self._put(topic)
                self._feed.publish([TopicChanged(topic.info) for topic in created])
            return TopicOutcomes(outcomes)

    async def _plan_topic(self, new: NewTopic, taken: Counter[str], validate_only: bool) -> TopicState:
        if reason := reason_against_topic_name(new.name):
            raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        if new.name in self.topics_by_name:
            raise _Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {new.name!r} exists already.")
        metric_name = _metric_name(new.name)
        if self._metric_names[metric_name] or taken[metric_name]:
            raise _Refused(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic {new.name!r} differs from another only in '.' and '_', which metrics cannot tell apart.",
            )
        defaults = effective_cluster_settings(self.cluster_configs)
        count = defaults.num_partitions if new.partition_count == -1 else new.partition_count
        if not 0 < count <= PARTITIONS_PER_TOPIC_MAX:
            raise _Refused(
                ErrorCode.INVALID_PARTITIONS, f"A topic has 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}."
            )
        factor = new.replication_factor
        if factor == -1:
            factor = defaults.default_replication_factor
        if not 0 < factor <= REPLICATION_FACTOR_MAX:
            raise _Refused(ErrorCode.INVALID_REPLICATION_FACTOR, f"The replication factor {factor} is not above 0.")
        try:
            validate_topic_configs(new.configs)
        except InvalidConfig as error:
            raise _Refused(ErrorCode.INVALID_CONFIG, str(error)) from None
        topic_id = self._entropy.token(16)
        # Nothing is used up by a mere validation: its answer carries no ids that could be taken for real ones.
        partitions = [] if validate_only else await self._new_partitions(topic_id, 0, count)
        info = TopicInfo(
            topic_id=bytes(16) if validate_only else topic_id,
            name=new.name,
            partition_ids=[-1] * count if validate_only else [state.partition_id for state in partitions],
            configs=dict(new.configs),
            replication_factor=factor,
            created_ms=self._clock.wall_ms(),
        )
        return TopicState(info, partitions)

    async def _new_partitions(self, topic_id: bytes, start: int, end: int) -> list[PartitionState]:
        await self._partition_ids.reserve(end - start)
        return [PartitionState(self._partition_ids.take(), topic_id, index) for index in range(start, end)]

    async def delete_topics(self, request: DeleteTopics) -> TopicOutcomes:
        async with self._turn:
            repeated = _repeated((ref.name, ref.topic_id) for ref in request.topics)
            removed: list[TopicState] = []
            outcomes: list[TopicOutcome] = []
            for ref in request.topics:
                try:
                    if (ref.name, ref.topic_id) in repeated:
                        raise _Refused(ErrorCode.INVALID_REQUEST, "The topic is in the request twice.")
                    topic = self._resolve(ref)
                    if topic in removed:
                        raise _Refused(
                            ErrorCode.INVALID_REQUEST, "The topic is in the request twice, by name and by id."
                        )
                except _Refused as refused:
                    outcomes.append(TopicOutcome(ref.name, refused.code, str(refused)))
                    continue
                removed.append(topic)
                outcomes.append(TopicOutcome(topic.info.name, 0, "", topic.info))
            if removed:
                now_ms = self._clock.wall_ms()

                def write(tx: Transaction) -> None:
                    ids = [topic.info.topic_id for topic in removed]
                    tx.executemany("DELETE FROM topics WHERE topic_id = ?", [(topic_id,) for topic_id in ids])
                    tx.executemany(
                        "UPDATE partitions SET removed_ms = ? WHERE topic_id = ?",
                        [(now_ms, topic_id) for topic_id in ids],
                    )

                await self._metadata.transact(write)
                for topic in removed:
                    self._drop(topic)
                self._feed.publish([TopicRemoved(topic.info.topic_id) for topic in removed])
            return TopicOutcomes(outcomes)

    def _resolve(self, ref: TopicRef) -> TopicState:
        if ref.name:
            topic = self.topics_by_name.get(ref.name)
            if topic is None:
                raise _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {ref.name!r}.")
            return topic
        topic = self.topics.get(ref.topic_id)
        if topic is None:
            raise _Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic with the id {ref.topic_id.hex()}.")
        return topic

    async def create_partitions(self, request: CreatePartitions) -> TopicOutcomes:
        async with self._turn:
            repeated = _repeated(growth.name for growth in request.topics)
            grown: list[tuple[TopicState, list[PartitionState]]] = []
            outcomes: list[TopicOutcome] = []
            for growth in request.topics:
                try:
                    if growth.name in repeated:
                        raise _Refused(ErrorCode.INVALID_REQUEST, f"Topic {growth.name!r} is in the request twice.")
                    topic = self._check_growth(growth)
                except _Refused as refused:
                    outcomes.append(TopicOutcome(growth.name, refused.code, str(refused)))
                    continue
                info = topic.info
                if not request.validate_only:
                    added = await self._new_partitions(info.topic_id, len(topic.partitions), growth.partition_count)
                    ids = [*info.partition_ids, *(state.partition_id for state in added)]
                    info = msgspec.structs.replace(info, partition_ids=ids)
                    grown.append((TopicState(info, [*topic.partitions, *added]), added))
                outcomes.append(TopicOutcome(growth.name, 0, "", info))
            if grown:
                added_states = [state for _, added in grown for state in added]
                await self._metadata.transact(lambda tx: _write_partitions(tx, added_states))
                for topic, _ in grown:
                    self._drop(self.topics[topic.info.topic_id])
                    self._put(topic)
                self._feed.publish([TopicChanged(topic.info) for topic, _ in grown])
            return TopicOutcomes(outcomes)

    def _check_growth(self, growth: PartitionGrowth) -> TopicState:
        topic = self._resolve(TopicRef(growth.name)) if growth.name else None
        if topic is None:
            raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic has no name.")
        count = len(topic.partitions)
        if growth.partition_count <= count:
            raise _Refused(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic {growth.name!r} has {count} partitions; {growth.partition_count} would not be an increase.",
            )
        if growth.partition_count > PARTITIONS_PER_TOPIC_MAX:
            raise _Refused(ErrorCode.INVALID_PARTITIONS, f"A topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions.")
        return topic

    # ── configs ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def alter_configs(self, request: AlterConfigs) -> Outcome:
        async with self._turn:
            try:
                if _repeated(change.name for change in request.changes):
                    raise _Refused(ErrorCode.INVALID_REQUEST, "A config is in the request twice.")
                if request.resource_type == TOPIC_RESOURCE:
                    await self._alter_topic(request)
                elif request.resource_type == BROKER_RESOURCE:
                    await self._alter_cluster(request)
                else:
                    raise _Refused(
                        ErrorCode.INVALID_REQUEST, f"Resources of type {request.resource_type} have no configs here."
                    )
            except _Refused as refused:
                return Outcome(refused.code, str(refused))
            except InvalidConfig as error:
                return Outcome(int(ErrorCode.INVALID_CONFIG), str(error))
            return Outcome(0)

    async def _alter_topic(self, request: AlterConfigs) -> None:
        if reason := reason_against_topic_name(request.resource_name):
            raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        topic = self._resolve(TopicRef(request.resource_name))
        configs = apply_changes(topic.info.configs, request.changes, replace=request.replace)
        validate_topic_configs(configs)
        if request.validate_only:
            return
        info = msgspec.structs.replace(topic.info, configs=configs)
        row = (_json(configs), info.topic_id)
        await self._metadata.transact(lambda tx: tx.execute("UPDATE topics SET configs = ? WHERE topic_id = ?", row))
        topic.info = info
        self._feed.publish([TopicChanged(info)])

    async def _alter_cluster(self, request: AlterConfigs) -> None:
        if request.resource_name:
            raise _Refused(
                ErrorCode.INVALID_REQUEST,
                f"Agent {request.resource_name} has no configs of its own: set them for the whole cluster (no name).",
            )
        configs = apply_changes(self.cluster_configs, request.changes, replace=request.replace)
        validate_cluster_configs(configs)
        if request.validate_only:
            return

        def write(tx: Transaction) -> None:
            tx.execute("DELETE FROM cluster_configs")
            tx.executemany("INSERT INTO cluster_configs (name, value) VALUES (?, ?)", list(configs.items()))

        await self._metadata.transact(write)
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


def _read_catalog(
    tx: Transaction,
) -> tuple[
    list[tuple[bytes, str, str, int, int]], dict[bytes, list[tuple[int, bytes, int, int, int, int]]], dict[str, str]
]:
    topics = tx.query("SELECT topic_id, name, configs, replication_factor, created_ms FROM topics ORDER BY name")
    partitions: dict[bytes, list[tuple[int, bytes, int, int, int, int]]] = {}
    for row in tx.query(
        "SELECT partition_id, topic_id, partition_index, log_start_offset, next_offset, size_bytes"
        " FROM partitions WHERE removed_ms IS NULL ORDER BY topic_id, partition_index"
    ):
        partitions.setdefault(row[1], []).append(row)
    configs = tx.query("SELECT name, value FROM cluster_configs ORDER BY name")
    return topics, partitions, dict(configs)


def _write_topics(tx: Transaction, topics: list[TopicState]) -> None:
    tx.executemany(
        "INSERT INTO topics (topic_id, name, configs, replication_factor, created_ms) VALUES (?, ?, ?, ?, ?)",
        [
            (info.topic_id, info.name, _json(info.configs), info.replication_factor, info.created_ms)
            for info in (topic.info for topic in topics)
        ],
    )
    _write_partitions(tx, [state for topic in topics for state in topic.partitions])


def _write_partitions(tx: Transaction, states: list[PartitionState]) -> None:
    tx.executemany(
        "INSERT INTO partitions (partition_id, topic_id, partition_index, log_start_offset, next_offset, size_bytes)"
        " VALUES (?, ?, ?, 0, 0, 0)",
        [(state.partition_id, state.topic_id, state.index) for state in states],
    )


def _json(configs: dict[str, str]) -> str:
    return msgspec.json.encode(configs, order="sorted").decode()


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def _repeated(names: Iterable[object]) -> frozenset[object]:
    return frozenset(name for name, count in Counter(names).items() if count > 1)
