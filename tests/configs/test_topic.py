"""Topic configs: what is accepted, what is in force, and how changes add up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.configs.topic import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC_CONFIGS,
    ConfigType,
    InvalidConfig,
    apply_changes,
    effective_settings,
    validate_topic_configs,
)
from braidlog.control.interface import ConfigChange
from braidlog.runtime.errors import Remedy


def test_settings_without_configs() -> None:
    got = effective_settings({}, {})
    assert got.cleanup_policy == frozenset({"delete"})
    assert (got.retention_ms, got.retention_bytes, got.max_message_bytes) == (604_800_000, -1, 1_048_588)
    assert (got.message_timestamp_type, got.log_append_time, got.compression_type) == ("CreateTime", False, "producer")
    assert (got.expires, got.compacted, got.records_deletable) == (True, False, True)
    assert got.topic_type == "classic"


def test_topics_that_are_alike_share_their_settings() -> None:
    """There may be a hundred thousand, and it takes a tenth of a millisecond to make them."""
    first = effective_settings({"retention.ms": "1", "cleanup.policy": "compact"}, {"log.retention.ms": "7"})
    again = effective_settings({"cleanup.policy": "compact", "retention.ms": "1"}, {"log.retention.ms": "7"})
    assert first is again
    assert effective_settings({"cleanup.policy": "compact"}, {"log.retention.ms": "7"}).retention_ms == 7


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
