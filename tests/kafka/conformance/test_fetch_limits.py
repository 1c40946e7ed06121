"""How many bytes a fetch answers, and which partitions get them."""

import pytest
from kio.schema.errors import ErrorCode as E
from tests.cluster import wait_until
from tests.kafka.conformance.records import batch
from tests.kafka.conformance.test_records import NewTopic, fetch, now_ms, produce, told
from tests.kafka.conformance.wire import Wire

PARTITIONS = 4
VALUE_BYTES = 40_000
BATCH_BYTES = len(batch(bytes(VALUE_BYTES), timestamp_ms=0))
WAIT_FOR_EVER_MS = 3_600_000


@pytest.fixture
def topic(wire: Wire, new_topic: NewTopic) -> str:
    """One large batch in every partition."""
    name = new_topic(PARTITIONS)
    for index in range(PARTITIONS):
        assert produce(wire, name, batch(bytes(VALUE_BYTES), timestamp_ms=now_ms()), index=index).error_code == E.none
        # What was acknowledged may be seen a moment later, where there are several brokers.
        wait_until(lambda index=index: told(fetch(wire, {name: {index: 0}}))[index].records, what="the record")
    return name


def sizes(wire: Wire, topic: str, order: list[int], **limits: int) -> list[int]:
    """The bytes of records that each partition gets, in the order in which they are asked for."""
    found = told(fetch(wire, {topic: dict.fromkeys(order, 0)}, **limits))
    assert all(each.error_code == E.none for each in found.values())
    return [len(found[index].records or b"") for index in order]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 3, 0, 1]])
def test_only_the_first_partition_exceeds_the_limit_of_a_response(wire: Wire, topic: str, order: list[int]) -> None:
    assert sizes(wire, topic, order, bytes_max=1) == [BATCH_BYTES, 0, 0, 0]
    assert sizes(wire, topic, order, bytes_max=2 * BATCH_BYTES - 1) == [BATCH_BYTES, 0, 0, 0]
    assert sizes(wire, topic, order, bytes_max=2 * BATCH_BYTES) == [BATCH_BYTES, BATCH_BYTES, 0, 0]


def test_only_the_first_partition_exceeds_its_own_limit(wire: Wire, topic: str) -> None:
    assert sizes(wire, topic, [0, 1, 2, 3], partition_bytes_max=100) == [BATCH_BYTES, 0, 0, 0]


def test_a_partition_without_records_is_not_the_first(wire: Wire, topic: str) -> None:
    found = told(fetch(wire, {topic: {0: 1, 1: 0, 2: 0}}, bytes_max=1))
    assert [len(found[index].records or b"") for index in range(3)] == [0, BATCH_BYTES, 0]


def test_more_than_a_response_may_have_is_not_waited_for(wire: Wire, topic: str) -> None:
    limits = {"bytes_min": 100 * BATCH_BYTES, "bytes_max": BATCH_BYTES, "wait_ms": WAIT_FOR_EVER_MS}
    assert sizes(wire, topic, [0, 1, 2, 3], **limits) == [BATCH_BYTES, 0, 0, 0]


def test_a_session_serves_every_partition_in_turn(wire: Wire, topic: str) -> None:
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    answer = fetch(wire, {topic: offsets}, session=(0, 0), bytes_max=1)
    session_id, served = answer.session_id, []
    for epoch in range(1, PARTITIONS + 1):
        read = [index for index, each in told(answer).items() if each.records]
        served += read
        # As consumers do: what was read goes on behind it.
        answer = fetch(wire, {topic: dict.fromkeys(read, 1)}, session=(session_id, epoch), bytes_max=1)
    assert sorted(served) == list(range(PARTITIONS))
    assert not any(each.records for each in told(answer).values())
