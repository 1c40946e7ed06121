"""The options of the data source, read without a session."""

import json

import pytest

from braidlog.runtime.errors import InvalidSetting
from braidlog.spark.kafka_options import without_effect
from braidlog.spark.options import AtTime, End, includes_headers, read_options, write_options

SUBSCRIBED = {"subscribe": "a, b"}


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    batch = read_options(SUBSCRIBED, streaming=False)
    assert batch.selection.names == ("a", "b")
    assert batch.starting.everywhere is End.EARLIEST
    assert batch.ending.everywhere is End.LATEST
    assert batch.fail_on_data_loss
    assert not batch.read_committed
    stream = read_options(SUBSCRIBED, streaming=True)
    assert stream.starting.everywhere is End.LATEST
    assert not includes_headers(SUBSCRIBED)


def test_names_do_not_care_about_case() -> None:
    options = read_options(
        {
            "SUBSCRIBE": "a",
            "startingoffsets": "latest",
            "kafka.isolation.level": "read_committed",
            "Braidlog.Control": "here:1",
        },
        streaming=False,
    )
    assert options.starting.everywhere is End.LATEST
    assert options.read_committed
    assert options.address.control == "here:1"


def test_agents_are_named_as_brokers_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAIDLOG_CONTROL", "elsewhere:1")
    agents = {"subscribe": "a", "kafka.bootstrap.servers": "one:9092,two:9092"}
    address = read_options(agents, streaming=False).address
    assert (address.control, address.bootstrap_servers) == ("", "one:9092,two:9092")
    assert write_options(agents).address == address
    both = read_options({**agents, "braidlog.control": "here:1"}, streaming=False).address
    assert (both.control, both.bootstrap_servers) == ("here:1", "")
    assert read_options({"subscribe": "a"}, streaming=False).address.control == "elsewhere:1"


def test_what_is_about_kafkas_client_is_named() -> None:
    given = {"subscribe": "a", "kafka.group.id": "g", "groupIdPrefix": "p", "kafka.linger.ms": "5"}
    assert without_effect(given) == ["groupidprefix", "kafka.group.id", "kafka.linger.ms"]
    read_options(given, streaming=True)
    read_options({"subscribe": "a", "kafka.security.protocol": "plaintext"}, streaming=True)


@pytest.mark.parametrize(
    "name",
    [
        "kafka.sasl.mechanism",
        "kafka.ssl.truststore.location",
        "kafka.security.protocol",
        "kafka.auto.offset.reset",
        "kafka.value.deserializer",
        "kafka.transactional.id",
        "kafka.partitioner.class",
        "kafka.lingerms",
        "control",
        "store",
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidSetting, match=name):
        read_options({"subscribe": "a", name: "x"}, streaming=False)
    with pytest.raises(InvalidSetting, match=name):
        write_options({"topic": "a", name: "x"})


def test_positions_by_partition_and_time() -> None:
    options = read_options(
        {
            "subscribe": "a",
            "startingOffsets": json.dumps({"a": {"0": 5, "1": -1, "2": -2}}),
            "endingOffsetsByTimestamp": json.dumps({"a": {"0": 17}}),
        },
        streaming=False,
    )
    assert options.starting.by_partition == {"a": {0: 5, 1: End.LATEST, 2: End.EARLIEST}}
    assert options.ending.by_partition == {"a": {0: AtTime(17)}}
    assert options.ending.lenient


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "0 of the options"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "2 of the options"),
        ({"subscribePattern": "("}, "cannot be read"),
        ({"assign": '{"a": 0}'}, "no list of partitions"),
        ({"assign": "a"}, "not JSON"),
        ({"subscribe": "a", "startingOffsets": "soon"}, "not JSON"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -7}}'}, "no offset"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"x": 7}}'}, "no partitions"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "endingOffsets"),
        ({"subscribe": "a", "endingOffsets": '{"a": {"0": -2}}'}, "earliest"),
        ({"subscribe": "a", "startingTimestamp": "yesterday"}, "no time"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"subscribe": "a", "minPartitions": "0"}, "minPartitions"),
        ({"subscribe": "a", "isolation.level": "serializable"}, "unknown"),
        ({"subscribe": "a", "startingOffset": "latest"}, "unknown option"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "soon"}, "Strategy is 'soon'"),
        ({"subscribe": "a", "maxRecordsPerPartition": "0"}, "maxRecordsPerPartition"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidSetting, match=text):
        read_options(options, streaming=False)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidSetting, match="a stream has no end"):
        read_options({"subscribe": "a", "endingOffsets": "latest"}, streaming=True)


def test_write_options() -> None:
    options = write_options({"topic": "t", "kafka.compression.type": "zstd", "writerId": "nightly", "batchId": "0"})
    assert (options.topic, options.compression, options.writer_id, options.batch_id) == ("t", "zstd", "nightly", 0)
    for wrong in ({"compression.type": "rar"}, {"writerId": "nightly"}, {"batchId": "1"}, {"objectBytes": "-1"}):
        with pytest.raises(InvalidSetting):
            write_options(wrong)
