"""The tables of the catalog: topics, partitions and the cluster's configs."""

from collections.abc import Mapping

import msgspec

from braidlog.control.interface import TopicInfo
from braidlog.control.metadata.counters import read_counter
from braidlog.control.metadata.store import Transaction
from braidlog.control.partitions import PartitionState, TopicState
from braidlog.records.leader_epochs import FIRST_EPOCH, LeaderEpochs


def read_catalog(
    tx: Transaction,
) -> tuple[
    list[tuple[bytes, str, str, int, int, str]],
    dict[bytes, list[tuple[int, bytes, int, int, int, int]]],
    dict[str, str],
]:
    topics = tx.query(
        "SELECT topic_id, name, configs, replication_factor, created_ms, assignments FROM topics ORDER BY name"
    )
    partitions: dict[bytes, list[tuple[int, bytes, int, int, int, int]]] = {}
    for row in tx.query(
        "SELECT partition_id, topic_id, partition_index, log_start_offset, next_offset, size_bytes"
        " FROM partitions WHERE removed_ms IS NULL ORDER BY topic_id, partition_index"
    ):
        partitions.setdefault(row[1], []).append(row)
    configs = tx.query("SELECT name, value FROM cluster_configs ORDER BY name")
    return topics, partitions, dict(configs)


LEADER_EPOCH = "leader_epoch"
"""The counter with the newest leader epoch of the cluster."""


def read_leader_epochs(tx: Transaction) -> tuple[int, dict[int, LeaderEpochs]]:
    """Return the cluster's leader epoch, and the epochs of partitions.

    Partitions that only have epoch 0 are left out.
    """
    found: dict[int, LeaderEpochs] = {}
    for partition_id, epoch, start_offset in tx.query(
        "SELECT partition_id, leader_epoch, start_offset FROM leader_epochs ORDER BY partition_id, leader_epoch"
    ):
        known = found.get(partition_id, FIRST_EPOCH if start_offset else ())
        found[partition_id] = (*known, (epoch, start_offset))
    return read_counter(tx, LEADER_EPOCH), found


def write_topics(tx: Transaction, topics: list[TopicState]) -> None:
    tx.executemany(
        "INSERT INTO topics (topic_id, name, configs, replication_factor, created_ms, assignments)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        [
            (
                info.topic_id,
                info.name,
                _json(info.configs),
                info.replication_factor,
                info.created_ms,
                _assignments_json(info),
            )
            for info in (topic.info for topic in topics)
        ],
    )
    write_partitions(tx, [state for topic in topics for state in topic.partitions])


def write_partitions(tx: Transaction, states: list[PartitionState]) -> None:
    tx.executemany(
        "INSERT INTO partitions (partition_id, topic_id, partition_index, log_start_offset, next_offset, size_bytes)"
        " VALUES (?, ?, ?, 0, 0, 0)",
        [(state.partition_id, state.topic_id, state.index) for state in states],
    )
    tx.executemany(
        "INSERT INTO leader_epochs (partition_id, leader_epoch, start_offset) VALUES (?, ?, ?)",
        [
            (state.partition_id, *each)
            for state in states
            if state.leader_epochs != FIRST_EPOCH
            for each in state.leader_epochs
        ],
    )


def write_assignments(tx: Transaction, infos: list[TopicInfo]) -> None:
    tx.executemany(
        "UPDATE topics SET assignments = ? WHERE topic_id = ?",
        [(_assignments_json(info), info.topic_id) for info in infos],
    )


def write_topic_configs(tx: Transaction, info: TopicInfo) -> None:
    tx.execute("UPDATE topics SET configs = ? WHERE topic_id = ?", (_json(info.configs), info.topic_id))


def write_cluster_configs(tx: Transaction, configs: Mapping[str, str]) -> None:
    tx.execute("DELETE FROM cluster_configs")
    tx.executemany("INSERT INTO cluster_configs (name, value) VALUES (?, ?)", list(configs.items()))


def _json(value: Mapping[str, object]) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _assignments_json(info: TopicInfo) -> str:
    return _json({str(index): replicas for index, replicas in info.assignments.items()})
