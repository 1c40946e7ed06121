"""What goes in comes out: every codec, every client, every part of a record."""

import time
from collections.abc import Callable

import aiokafka
import confluent_kafka
import pytest
from tests.kafka.clients import CLIENTS, CODECS, PYTHON_CLIENTS, KafkaClient, Record, has_kcat, without_place
from tests.kafka.stored import stored_batches
from tests.kafka.topics import admin_client, error_name, unique_name

from braidlog.records.batch import HEADER_BYTES
from braidlog.records.codec import CODEC_NAMES, Codec, compress
from braidlog.records.record import decode_batch, read_payload

NewTopic = Callable[..., str]


def some_records(count: int) -> list[Record]:
    return [Record(b"value %d " % i + b"x" * (i % 50), b"key %d" % (i % 7)) for i in range(count)]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_with_every_client(client: KafkaClient, codec: str, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    records = some_records(100)
    offsets = client.produce(bootstrap, topic, records, codec=codec)
    found = client.consume(bootstrap, topic, len(records))
    assert without_place(found) == records
    assert [record.offset for record in found] == list(range(100))
    assert offsets in ([], list(range(100)))  # kcat does not tell


def test_each_client_reads_what_each_other_wrote(bootstrap: str, new_topic: NewTopic) -> None:
    writers = [name for name in CLIENTS if name != "kcat" or has_kcat()]
    topic = new_topic(partitions=len(writers))
    expected: dict[int, list[Record]] = {}
    for partition, writer in enumerate(writers):
        for codec in CODECS:
            records = [Record(f"{writer} {codec} {i}".encode(), f"{i}".encode(), partition=partition) for i in range(5)]
            CLIENTS[writer].produce(bootstrap, topic, records, codec=codec)
            expected.setdefault(partition, []).extend(records)
    for reader in writers:
        found = CLIENTS[reader].consume(bootstrap, topic, 25 * len(writers), partitions=range(len(writers)))
        for partition, records in expected.items():
            mine = [record for record in found if record.partition == partition]
            assert without_place(mine) == without_place(records), reader


def test_nulls_headers_and_timestamps(client: KafkaClient, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(retention_ms=-1)
    headers = (("name", b"text"), ("name", b"twice"), ("empty", b""))
    if client.name == "kcat":
        records = [Record(b"v", b"k", headers), Record(None, b"deleted", headers), Record(b"no key", None, headers)]
    else:
        headers += (("binary", bytes(range(256))),)
        start_ms = 1_600_000_000_000
        records = [
            Record(b"v", b"k", headers, start_ms),
            Record(None, b"deleted", (), start_ms + 5),
            Record(b"no key", None, (), start_ms - 5),
            Record(b"", b"", (), start_ms + 1),
        ]
        if client.name == "confluent":  # the others refuse it themselves
            records.append(Record(None, None, headers, start_ms + 2))
    client.produce(bootstrap, topic, records)
    found = client.consume(bootstrap, topic, len(records))
    assert without_place(found) == without_place(records)
    if client.name != "kcat":
        assert [record.timestamp_ms for record in found] == [record.timestamp_ms for record in records]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_log_append_time_is_stamped_by_the_broker(codec: str, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    records = [Record(b"%d" % i, timestamp_ms=1000 + i) for i in range(20)]
    CLIENTS["confluent"].produce(bootstrap, topic, records, codec=codec)
    after_ms = int(time.time() * 1000)
    for name in PYTHON_CLIENTS:
        found = CLIENTS[name].consume(bootstrap, topic, 20)
        assert [record.value for record in found] == [b"%d" % i for i in range(20)]
        assert all(before_ms <= (record.timestamp_ms or 0) <= after_ms for record in found), name


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_where_the_log_stamps_its_own_time_the_producers_may_be_any(
    codec: str, bootstrap: str, new_topic: NewTopic
) -> None:
    now_ms = int(time.time() * 1000)
    times_ms = [1000, now_ms, now_ms + 1_000_000_000]
    bounds = {"message_timestamp_before_max_ms": 60_000, "message_timestamp_after_max_ms": 60_000}
    topic = new_topic(message_timestamp_type="LogAppendTime", **bounds)
    kept = new_topic(**bounds)
    for place, time_ms in enumerate(times_ms):
        record = Record(b"value", timestamp_ms=time_ms)
        assert CLIENTS["confluent"].produce(bootstrap, topic, [record], codec=codec) == [place]
        if time_ms != now_ms:
            with pytest.raises(confluent_kafka.KafkaException) as caught:
                CLIENTS["confluent"].produce(bootstrap, kept, [record], codec=codec)
            assert error_name(caught.value) == "INVALID_TIMESTAMP"
    assert all(
        abs((record.timestamp_ms or 0) - now_ms) < 600_000
        for record in CLIENTS["confluent"].consume(bootstrap, topic, len(times_ms))
    )


@pytest.mark.parametrize("name", PYTHON_CLIENTS)
def test_a_record_of_900_kb(name: str, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    value = bytes(range(256)) * 3515
    client = CLIENTS[name]
    assert client.produce(bootstrap, topic, [Record(value), Record(b"small")]) == [0, 1]
    assert [record.value for record in client.consume(bootstrap, topic, 2)] == [value, b"small"]


@pytest.mark.parametrize("name", PYTHON_CLIENTS)
def test_a_record_of_5_mb_where_the_topic_allows_it(name: str, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(max_message_bytes=6_000_000)
    value = bytes(range(256)) * 19_531
    client = CLIENTS[name]
    assert client.produce(bootstrap, topic, [Record(value)]) == [0]
    assert [record.value for record in client.consume(bootstrap, topic, 1)] == [value]


@pytest.mark.parametrize("name", PYTHON_CLIENTS)
def test_a_record_beyond_the_limit_is_refused_and_the_next_one_is_not(
    name: str, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(max_message_bytes=100_000)
    client = CLIENTS[name]
    with pytest.raises(Exception, match=r"(?i)message.{0,3}(size )?.{0,3}too.{0,3}large|larger than"):
        client.produce(bootstrap, topic, [Record(b"x" * 200_000)])
    assert client.produce(bootstrap, topic, [Record(b"small")]) == [0]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(client: KafkaClient, acks: str, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    records = some_records(20)
    offsets = client.produce(bootstrap, topic, records, acks=acks)
    assert without_place(client.consume(bootstrap, topic, 20)) == records
    if client.name != "kcat" and acks != "0":
        assert offsets == list(range(20))


def test_a_hundred_partitions(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=100)
    records = [Record(b"%d" % i, partition=i % 100) for i in range(1_000)]
    CLIENTS["confluent"].produce(bootstrap, topic, records)
    for name in PYTHON_CLIENTS:
        found = CLIENTS[name].consume(bootstrap, topic, 1_000, partitions=range(100))
        by_partition: dict[int, list[bytes | None]] = {}
        for record in found:
            assert record.offset == len(by_partition.setdefault(record.partition, []))
            by_partition[record.partition].append(record.value)
        assert by_partition == {p: [b"%d" % i for i in range(p, 1_000, 100)] for p in range(100)}, name


def test_topics_are_created_on_first_use(client: KafkaClient, bootstrap: str) -> None:
    topic = unique_name("auto")
    client.produce(bootstrap, topic, [Record(b"first", b"k")])
    assert [record.value for record in client.consume(bootstrap, topic, 1)] == [b"first"]
    assert topic in admin_client(bootstrap).list_topics(timeout=60).topics


def test_many_records_through_small_batches(bootstrap: str, new_topic: NewTopic) -> None:
    """More requests than a connection may have in flight, and several producers at once on the same partition."""
    topic = new_topic()
    delivered: list[int] = []

    def report(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        assert error is None
        delivered.append(message.offset())

    settings = {"bootstrap.servers": bootstrap, "linger.ms": 0, "batch.num.messages": 3}
    producers = [confluent_kafka.Producer(settings) for _ in range(3)]
    for i in range(1_000):
        for number, producer in enumerate(producers):
            producer.produce(topic, b"%d %d" % (number, i), partition=0, on_delivery=report)
    for producer in producers:
        assert producer.flush(60) == 0
    assert sorted(delivered) == list(range(3_000))
    found = CLIENTS["confluent"].consume(bootstrap, topic, 3_000)
    for number in range(3):
        mine = [record.value for record in found if (record.value or b"").startswith(b"%d " % number)]
        assert mine == [b"%d %d" % (number, i) for i in range(1_000)]


async def test_idempotent_producers_of_aiokafka(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=1, max_batch_size=2_000
    )
    await producer.start()
    futures = [await producer.send(topic, b"%d" % i, partition=i % 2) for i in range(500)]
    reports = [await future for future in futures]
    await producer.stop()
    assert [(report.partition, report.offset) for report in reports] == [(i % 2, i // 2) for i in range(500)]


@pytest.mark.parametrize(("wanted", "sent"), [("gzip", "zstd"), ("uncompressed", "lz4"), ("snappy", "none")])
def test_a_topic_with_a_codec_of_its_own(wanted: str, sent: str, bootstrap: str, new_topic: NewTopic) -> None:
    """A topic may choose the codec itself: batches are recompressed, and read by everybody."""
    topic = new_topic(compression_type=wanted)
    records = some_records(50)
    CLIENTS["confluent"].produce(bootstrap, topic, records, codec=sent)
    batches = stored_batches(bootstrap, topic)
    assert {header.codec for header, _ in batches} == {CODEC_NAMES[wanted.replace("uncompressed", "none")]}
    found = [record for _, batch in batches for record in decode_batch(batch, bytes_max=1 << 20)]
    assert [record.value for record in found] == [record.value for record in records]
    for name in PYTHON_CLIENTS:
        assert without_place(CLIENTS[name].consume(bootstrap, topic, 50)) == records


@pytest.mark.parametrize(("codec", "level"), [("gzip", 1), ("lz4", 12), ("zstd", 19)])
def test_a_topic_with_a_level_of_its_own(codec: str, level: int, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(compression_type=codec, **{f"compression_{codec}_level": level})
    records = [Record(b" ".join(b"%d" % (number * number % 9973) for number in range(i, i + 500))) for i in range(50)]
    CLIENTS["confluent"].produce(bootstrap, topic, records)
    for header, batch in stored_batches(bootstrap, topic):
        assert header.codec is CODEC_NAMES[codec]
        payload = read_payload(batch, header, bytes_max=1 << 20)
        assert batch[HEADER_BYTES:] == compress(header.codec, payload, level=level)
        assert batch[HEADER_BYTES:] != compress(header.codec, payload)
    for name in PYTHON_CLIENTS:
        assert without_place(CLIENTS[name].consume(bootstrap, topic, 50)) == records


@pytest.mark.parametrize(("wanted", "sent"), [("uncompressed", "gzip"), ("snappy", "zstd")])
def test_a_batch_that_is_too_large_as_its_topic_wants_it(
    wanted: str, sent: str, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(compression_type=wanted, max_message_bytes=500_000)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        CLIENTS["confluent"].produce(bootstrap, topic, [Record(bytes(15_000_000))], codec=sent)
    assert error_name(caught.value) == "MSG_SIZE_TOO_LARGE"
    assert CLIENTS["confluent"].produce(bootstrap, topic, [Record(bytes(400_000))], codec=sent) == [0]


def test_a_batch_may_decompress_to_more_than_the_limit(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(compression_type="gzip", max_message_bytes=100_000)
    value = bytes(5_000_000)
    assert CLIENTS["confluent"].produce(bootstrap, topic, [Record(value)], codec="zstd") == [0]
    assert [header.codec for header, _ in stored_batches(bootstrap, topic)] == [Codec.GZIP]
    assert [record.value for record in CLIENTS["confluent"].consume(bootstrap, topic, 1)] == [value]


def test_a_compacted_topic_needs_keys(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(cleanup_policy="compact")
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        CLIENTS["confluent"].produce(bootstrap, topic, [Record(b"no key")])
    assert error_name(caught.value) == "INVALID_RECORD"
    assert CLIENTS["confluent"].produce(bootstrap, topic, [Record(b"value", b"key")]) == [0]
