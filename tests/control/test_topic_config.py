"""Topic and cluster configs: what is accepted, what holds, and how changes add up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.control.interface import ConfigChange
from braidlog.control.topic_config import (
    APPEND,
    CLUSTER_CONFIGS,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC_CONFIGS,
    ConfigType,
    InvalidConfig,
    apply_changes,
    effective_cluster_settings,
    effective_settings,
    validate_cluster_configs,
    validate_topic_configs,
)
from braidlog.runtime.errors import Remedy

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


def test_settings_without_configs() -> None:
    got = effective_settings({}, {})
    assert got.cleanup_policy == frozenset({"delete"})
    assert (got.retention_ms, got.retention_bytes, got.max_message_bytes) == (604_800_000, -1, 1_048_588)
    assert (got.message_timestamp_type, got.log_append_time, got.compression_type) == ("CreateTime", False, "producer")
    assert (got.expires, got.compacted, got.records_deletable) == (True, False, True)
    assert got.topic_type == "classic"


def test_the_compression_level_is_that_of_the_topics_codec() -> None:
    levels = {"compression.gzip.level": "2", "compression.lz4.level": "4", "compression.zstd.level": "-7"}
    chosen = {"gzip": 2, "lz4": 4, "zstd": -7, "snappy": None, "uncompressed": None, "producer": None}
    defaults = {"gzip": None, "lz4": 9, "zstd": 3}
    for codec, level in chosen.items():
        assert effective_settings({"compression.type": codec, **levels}, {}).compression_level == level
        assert effective_settings({"compression.type": codec}, levels).compression_level == level
        assert effective_settings({"compression.type": codec}, {}).compression_level == defaults.get(codec)


@pytest.mark.parametrize(
    ("topic", "cluster", "retention_ms"),
    [
        ({"retention.ms": "5"}, {"log.retention.ms": "6"}, 5),
        ({}, {"log.retention.ms": "6", "log.retention.minutes": "7", "log.retention.hours": "8"}, 6),
        ({}, {"log.retention.minutes": "7", "log.retention.hours": "8"}, 7 * 60_000),
        ({}, {"log.retention.hours": "8"}, 8 * 3_600_000),
        ({}, {"log.retention.hours": "-1"}, -1),
        ({"retention.ms": "-1"}, {"log.retention.hours": "8"}, -1),
        ({}, {"unrelated": "x"}, 604_800_000),
    ],
)
def test_the_topics_config_comes_before_the_clusters_and_fine_before_coarse(topic, cluster, retention_ms) -> None:
    assert effective_settings(topic, cluster).retention_ms == retention_ms


@pytest.mark.parametrize(
    ("policy", "expected", "deletable"),
    [
        ("delete", {"delete"}, True),
        ("compact", {"compact"}, False),
        ("compact,delete", {"compact", "delete"}, True),
        (" delete , compact ", {"compact", "delete"}, True),
        ("", set(), True),
    ],
)
def test_cleanup_policies(policy, expected, deletable) -> None:
    validate_topic_configs({"cleanup.policy": policy})
    got = effective_settings({"cleanup.policy": policy}, {})
    assert got.cleanup_policy == expected
    assert got.records_deletable is deletable


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("no.such.config", "1", "Unknown topic config name: no.such.config"),
        ("log.retention.ms", "1", "Unknown topic config name: log.retention.ms"),
        ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        ("retention.ms", "abc", "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "", "Invalid value  for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", "٣", "Not a number of type LONG"),
        ("segment.bytes", "1048575", "Value must be at least 1048576"),
        ("segment.bytes", "2147483648", "Not a number of type INT"),
        ("cleanup.policy", "shred", "Invalid value shred for configuration cleanup.policy: String must be one of"),
        ("cleanup.policy", "delete,delete", "must not contain duplicate values"),
        ("compression.type", "brotli", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("compression.gzip.level", "0", "between 1 and 9 or equal to -1"),
        ("compression.gzip.level", "10", "no more than 9"),
        ("preallocate", "yes", "Expected value to be either true or false"),
        ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "Value must be at least 0"),
        ("min.insync.replicas", "0", "Value must be at least 1"),
        ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
        ("braidlog.topic.type", "express", "String must be one of: classic, lightning"),
    ],
)
def test_what_a_topic_refuses(name, value, message) -> None:
    with pytest.raises(InvalidConfig) as caught:
        validate_topic_configs({name: value})
    assert message in str(caught.value)
    assert caught.value.remedy is Remedy.FIX_INPUT
    assert caught.value.help


def test_lags_that_contradict_each_other() -> None:
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms \(9\) > max\.compaction\.lag\.ms \(5\)"):
        validate_topic_configs({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "5"})


def test_booleans_are_read_as_kafka_does() -> None:
    validate_topic_configs({"preallocate": "TRUE", "remote.storage.enable": " False "})


def test_lightning_is_a_topics_choice_or_the_clusters_default() -> None:
    lightning, classic = {"braidlog.topic.type": "lightning"}, {"braidlog.topic.type": "classic"}
    assert effective_settings(lightning, {}).is_lightning
    assert effective_settings({}, lightning).is_lightning
    assert not effective_settings(classic, lightning).is_lightning
    assert not effective_settings({}, {}).is_lightning


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


CURRENT = {"retention.ms": "5", "cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("changes", "replace", "expected"),
    [
        ([], False, CURRENT),
        ([], True, {}),
        ([("segment.ms", SET, "7")], False, CURRENT | {"segment.ms": "7"}),
        ([("segment.ms", SET, "7")], True, {"segment.ms": "7"}),
        ([("retention.ms", SET, None)], False, {"cleanup.policy": "compact"}),
        ([("retention.ms", DELETE, None)], False, {"cleanup.policy": "compact"}),
        ([("segment.ms", DELETE, None)], False, CURRENT),
        ([("cleanup.policy", APPEND, "delete")], False, CURRENT | {"cleanup.policy": "compact,delete"}),
        ([("cleanup.policy", APPEND, "compact")], False, CURRENT),
        ([("cleanup.policy", SUBTRACT, "compact")], False, CURRENT | {"cleanup.policy": ""}),
        ([("cleanup.policy", SUBTRACT, "delete")], False, CURRENT),
        # Not set: the default is what it is appended to.
        ([("cleanup.policy", DELETE, None), ("cleanup.policy", APPEND, "compact")], False,
         {"retention.ms": "5", "cleanup.policy": "delete,compact"}),
        ([("log.cleanup.policy", APPEND, "compact")], False, CURRENT | {"log.cleanup.policy": "delete,compact"}),
    ],
)  # fmt: skip
def test_changes(changes, replace, expected) -> None:
    before = dict(CURRENT)
    assert apply_changes(CURRENT, [ConfigChange(*change) for change in changes], replace=replace) == expected
    assert before == CURRENT


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("retention.ms", APPEND, "7"), "Can't append to key retention.ms because its type is not LIST."),
        (("retention.ms", SUBTRACT, "7"), "Can't subtract from key retention.ms because its type is not LIST."),
        (("no.such.list", APPEND, "7"), "type is not LIST"),
        (("retention.ms", 9, "7"), "Unknown config operation 9"),
    ],
)
def test_changes_that_cannot_be_made(change, message) -> None:
    with pytest.raises(InvalidConfig, match=message):
        apply_changes({}, [ConfigChange(*change)], replace=False)


LISTS = sorted(name for name, definition in TOPIC_CONFIGS.items() if definition.type is ConfigType.LIST)
CHANGE = st.one_of(
    st.builds(ConfigChange, st.sampled_from(sorted(TOPIC_CONFIGS)), st.just(SET), st.text("ab,1", max_size=4)),
    st.builds(ConfigChange, st.sampled_from(sorted(TOPIC_CONFIGS)), st.just(DELETE), st.none()),
    st.builds(ConfigChange, st.sampled_from(LISTS), st.sampled_from([APPEND, SUBTRACT]), st.sampled_from(["a", "a,b"])),
)


@settings(max_examples=100)
@given(st.lists(CHANGE, max_size=6, unique_by=lambda change: change.name), st.booleans())
def test_the_same_changes_again_change_nothing(changes, replace) -> None:
    """What an agent relies on to see that its view has caught up."""
    once = apply_changes(CURRENT, changes, replace=replace)
    assert apply_changes(once, changes, replace=replace) == once


@settings(max_examples=200)
@given(st.sampled_from(sorted(TOPIC_CONFIGS)), st.text(max_size=12))
def test_any_text_is_refused_or_has_an_effect(name, text) -> None:
    try:
        validate_topic_configs({name: text})
    except InvalidConfig:
        return
    effective_settings({name: text}, {})
