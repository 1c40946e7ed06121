"""The definitions of topic configs are Kafka's."""

import pytest

from braidlog.configs.topic import (
    CLUSTER_CONFIGS,
    TOPIC_CONFIGS,
)

KAFKA_TOPIC_CONFIGS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def test_kafkas_topic_configs_and_defaults() -> None:
    ours = {"braidlog.topic.type": "classic"}
    assert {name: definition.default for name, definition in TOPIC_CONFIGS.items()} == KAFKA_TOPIC_CONFIGS | ours


@pytest.mark.parametrize("definition", [*TOPIC_CONFIGS.values(), *CLUSTER_CONFIGS.values()], ids=lambda d: d.name)
def test_every_default_is_accepted(definition) -> None:
    assert definition.documentation
    if definition.default is not None:
        definition.parse(definition.default)


def test_every_synonym_is_a_cluster_config_and_the_weakest_alone_has_the_default() -> None:
    for definition in TOPIC_CONFIGS.values():
        for synonym in definition.synonyms:
            has_default = CLUSTER_CONFIGS[synonym.name].default is not None
            assert has_default == (synonym is definition.synonyms[-1]), synonym.name
