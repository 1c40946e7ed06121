"""The configs of the cluster: what is accepted, and what it comes to."""

import pytest

from braidlog.configs.topic import (
    InvalidConfig,
    effective_cluster_settings,
    validate_cluster_configs,
)


def test_cluster_settings() -> None:
    assert effective_cluster_settings({}).num_partitions == 1
    assert effective_cluster_settings({"num.partitions": "12"}).num_partitions == 12
    assert effective_cluster_settings({"auto.create.topics.enable": "false"}).auto_create_topics_enable is False


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"node.id": "7"}, "Cannot update these configs dynamically: node.id"),
        ({"log.dirs": "/tmp", "broker.id": "1"}, "Cannot update these configs dynamically: broker.id, log.dirs"),
        ({"retention.ms": "7"}, "Unknown broker config name: retention.ms"),
        ({"num.partitions": "0"}, "Value must be at least 1"),
        ({"log.retention.hours": "x"}, "Not a number of type INT"),
        ({"log.cleanup.policy": "shred"}, "String must be one of: compact, delete"),
    ],
)
def test_what_the_cluster_refuses(configs, message) -> None:
    with pytest.raises(InvalidConfig, match=message):
        validate_cluster_configs(configs)


def test_what_the_cluster_accepts() -> None:
    validate_cluster_configs({"num.partitions": "6", "log.retention.ms": "-1", "log.cleanup.policy": "compact"})
