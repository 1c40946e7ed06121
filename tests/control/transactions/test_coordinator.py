"""Transactions in the control plane: identities, contents, ends, and what readers are told of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from tests.control.driver import Plane, batch, commit, create_topic, new_producer, start_plane
from tests.control.transactions.driver import (
    TIMEOUT_MS,
    TransactionalProducer,
    aborted,
    bounds,
    committed_offset,
    markers,
    stable_offset,
)

from braidlog.control.interface import (
    CommitOffsets,
    DeleteRecords,
    DeleteTopics,
    DescribeProducers,
    DescribeTransactions,
    FeedRequest,
    InitProducerId,
    ListTransactions,
    OffsetToCommit,
    TopicRef,
    TransactionsEnded,
)
from braidlog.control.settings import ControlSettings
from braidlog.control.transactions.settings import TransactionSettings
from braidlog.control.transactions.state import EPOCH_LAST
from braidlog.records.batch import TRANSACTIONAL_BIT
from braidlog.records.marker import MarkerType

FENCED = int(ErrorCode.producer_fenced)
OLD_EPOCH = int(ErrorCode.invalid_producer_epoch)
WRONG_STATE = int(ErrorCode.invalid_txn_state)
NO_MAPPING = int(ErrorCode.invalid_producer_id_mapping)


@pytest.fixture
async def plane() -> AsyncIterator[Plane]:
    # What runs on its own is called by the tests that are about it.
    settings = TransactionSettings(timeout_check_interval_s=1e9, expiry_check_interval_s=1e9)
    plane = await start_plane(settings=ControlSettings(recent_extents_max=8, transactions=settings))
    yield plane
    await plane.service.close()


@pytest.fixture(params=[1, 2])
async def producer(plane: Plane, request: pytest.FixtureRequest) -> TransactionalProducer:
    """Make a producer of either version."""
    producer = TransactionalProducer(plane.service, version=request.param)
    assert await producer.init() == 0
    return producer


async def test_a_commit_puts_a_marker_into_every_partition_at_once(
    plane: Plane, producer: TransactionalProducer
) -> None:
    topic = await create_topic(plane.service, "t", 3)
    await commit(plane.service, topic, [batch(2)], 1)
    epoch, producer_id = producer.epoch, producer.producer_id
    await producer.begin(topic, 0, 1)
    assert [await stable_offset(plane.service, topic, index) for index in range(3)] == [0, 2, 0]
    position = plane.service.parts.feed.position
    assert await producer.end(commit=True) == 0
    assert [await stable_offset(plane.service, topic, index) for index in range(3)] == [2, 4, 0]
    assert await markers(plane.service, topic, 2) == []
    for index, offset in ((0, 1), (1, 3)):
        ((at, marker),) = await markers(plane.service, topic, index)
        assert (at, marker.type, marker.producer_id) == (offset, MarkerType.COMMIT, producer_id)
        assert marker.producer_epoch == (epoch if producer.version == 1 else epoch + 1)
    page = await plane.service.read_feed(FeedRequest(position, 0))
    (event,) = page.events
    assert isinstance(event, TransactionsEnded)
    assert [extent.base_offset for extent in event.extents] == [1, 3]
    assert [offset for _, offset in event.unstable] == [-1, -1]
    assert event.aborted == []


async def test_an_abort_is_told_to_readers(plane: Plane, producer: TransactionalProducer) -> None:
    topic = await create_topic(plane.service, "t", 2)
    await producer.begin(topic, 0, 1)
    first_id = producer.producer_id
    assert await producer.end(commit=False) == 0
    await producer.begin(topic, 0)
    assert await producer.end(commit=True) == 0
    await producer.begin(topic, 0)
    assert await producer.end(commit=False) == 0
    assert [marker.type for _, marker in await markers(plane.service, topic)] == [
        MarkerType.ABORT,
        MarkerType.COMMIT,
        MarkerType.ABORT,
    ]
    assert await aborted(plane.service, topic) == [(first_id, 0), (first_id, 4)]
    assert await aborted(plane.service, topic, 0, 2, 4) == []
    assert await aborted(plane.service, topic, 0, 0, 1) == [(first_id, 0)]
    assert await aborted(plane.service, topic, 0, 5) == [(first_id, 4)]
    assert await aborted(plane.service, topic, 1) == [(first_id, 0)]
    assert (await bounds(plane.service, topic)).aborted_end_offset == 6


async def test_what_is_open_holds_back_the_stable_offset(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    first, second = TransactionalProducer(plane.service, "a"), TransactionalProducer(plane.service, "b", version=2)
    await first.init()
    await second.init()
    await commit(plane.service, topic, [batch()])
    await first.begin(topic)
    await second.begin(topic)
    await commit(plane.service, topic, [batch(5)])
    second_id = second.producer_id
    assert await stable_offset(plane.service, topic) == 1
    assert await second.end(commit=False) == 0
    assert await stable_offset(plane.service, topic) == 1
    await second.begin(topic)
    assert await first.end(commit=True) == 0
    assert await stable_offset(plane.service, topic) == 9
    assert await second.end(commit=True) == 0
    assert await stable_offset(plane.service, topic) == 12
    assert await aborted(plane.service, topic) == [(second_id, 2)]


async def test_a_late_batch_cannot_reopen_a_transaction(plane: Plane, producer: TransactionalProducer) -> None:
    topic = await create_topic(plane.service)
    await producer.begin(topic)
    producer_id, epoch, sequence = producer.producer_id, producer.epoch, 1
    assert await producer.end(commit=True) == 0
    late = batch(1, producer_id, epoch, sequence, attributes=TRANSACTIONAL_BIT)
    ((code, _, _),) = await commit(plane.service, topic, [late])
    assert code == (WRONG_STATE if producer.version == 1 else OLD_EPOCH)
    assert await stable_offset(plane.service, topic) == 2


async def test_version_1_must_add_partitions_first(plane: Plane) -> None:
    topic = await create_topic(plane.service, "t", 2)
    producer = TransactionalProducer(plane.service)
    await producer.init()
    assert await producer.write(topic) == (WRONG_STATE, -1)
    assert await producer.add(topic, 0) == [0]
    assert await producer.write(topic) == (0, 0)
    assert await producer.write(topic, 1) == (WRONG_STATE, -1)
    assert await producer.add(topic, 0, 1, verify_only=True) == [0, int(ErrorCode.transaction_abortable)]
    assert await producer.add(topic, 1, 2) == [int(ErrorCode.operation_not_attempted), 3]
    assert await producer.write(topic, 1) == (WRONG_STATE, -1)


async def test_only_transactional_producers_write_transactional_batches(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    plain = await new_producer(plane.service)
    assert await commit(plane.service, topic, [batch(1, plain, attributes=TRANSACTIONAL_BIT)]) == [
        (NO_MAPPING, -1, False)
    ]
    producer = TransactionalProducer(plane.service)
    await producer.init()
    # Outside of a transaction it may write as others do; inside one it may not.
    assert await commit(plane.service, topic, [batch(1, producer.producer_id)]) == [(0, 0, False)]
    producer.sequences[topic.topic_id, 0] = 1
    await producer.begin(topic)
    assert await commit(plane.service, topic, [batch(1, producer.producer_id, 0, 2)]) == [(WRONG_STATE, -1, False)]
    # Both in one object: the first one opens the transaction for the second.
    await producer.end(commit=True)
    await producer.add(topic)
    both = [
        batch(1, producer.producer_id, 0, 2, attributes=TRANSACTIONAL_BIT),
        batch(1, producer.producer_id, 0, 3),
        batch(1, producer.producer_id, 0, 3, attributes=TRANSACTIONAL_BIT),
    ]
    assert [code for code, _, _ in await commit(plane.service, topic, both)] == [0, WRONG_STATE, 0]
    assert await stable_offset(plane.service, topic) == 3


async def test_batches_that_are_sent_again_are_recognised(plane: Plane, producer: TransactionalProducer) -> None:
    topic = await create_topic(plane.service)
    await producer.begin(topic)
    again = batch(1, producer.producer_id, producer.epoch, 0, attributes=TRANSACTIONAL_BIT)
    assert await commit(plane.service, topic, [again]) == [(0, 0, True)]
    assert await producer.write(topic) == (0, 1)


async def test_a_second_producer_fences_the_first_and_aborts_what_it_left(
    plane: Plane, producer: TransactionalProducer
) -> None:
    topic = await create_topic(plane.service)
    await producer.begin(topic)
    second = TransactionalProducer(plane.service, version=producer.version)
    assert await second.init() == 0
    assert (second.producer_id, second.epoch) == (producer.producer_id, producer.epoch + 1)
    assert await stable_offset(plane.service, topic) == 2
    assert await aborted(plane.service, topic) == [(producer.producer_id, 0)]
    assert await producer.write(topic) == (OLD_EPOCH, -1)
    assert await producer.add(topic) == [FENCED]
    assert await producer.end(commit=True) in (FENCED, WRONG_STATE)
    assert await producer.add_group("g") == FENCED
    assert await producer.commit_offset("g", topic, 5) == FENCED
    assert await producer.init(bump=True) == FENCED
    await second.begin(topic)
    assert await second.end(commit=True) == 0


async def test_a_producer_may_ask_for_a_new_epoch(plane: Plane, producer: TransactionalProducer) -> None:
    topic = await create_topic(plane.service)
    await producer.begin(topic)
    before = TransactionalProducer(plane.service, producer_id=producer.producer_id, epoch=producer.epoch)
    assert await producer.init(bump=True) == 0
    assert producer.epoch == before.epoch + 1
    assert await aborted(plane.service, topic) == [(producer.producer_id, 0)]
    # The answer was lost, and it asks again: it gets the same one.
    assert await before.init(bump=True) == 0
    assert before.epoch == producer.epoch
    before.epoch -= 2
    assert await before.init(bump=True) == FENCED


async def test_ends_may_be_asked_for_again(plane: Plane, producer: TransactionalProducer) -> None:
    topic = await create_topic(plane.service)
    for is_commit in (True, False):
        await producer.begin(topic)
        again = TransactionalProducer(
            plane.service, version=producer.version, producer_id=producer.producer_id, epoch=producer.epoch
        )
        assert await producer.end(commit=is_commit) == 0
        high_watermark = (await bounds(plane.service, topic)).high_watermark
        assert await again.end(commit=not is_commit) == WRONG_STATE
        assert await again.end(commit=is_commit) == 0
        assert (again.producer_id, again.epoch) == (producer.producer_id, producer.epoch)
        assert (await bounds(plane.service, topic)).high_watermark == high_watermark


async def test_nothing_to_end(plane: Plane) -> None:
    first = TransactionalProducer(plane.service)
    await first.init()
    assert await first.end(commit=True) == WRONG_STATE
    assert await first.end(commit=False) == WRONG_STATE
    second = TransactionalProducer(plane.service, "two", version=2)
    await second.init()
    assert await second.end(commit=True) == WRONG_STATE
    # An abort of nothing is how a client of version 2 gets a new epoch.
    assert await second.end(commit=False) == 0
    assert second.epoch == 1
    nobody = TransactionalProducer(plane.service, "nobody", producer_id=99, epoch=0)
    assert await nobody.end(commit=True) == NO_MAPPING
    first.producer_id += 1
    assert await first.end(commit=True) == NO_MAPPING


async def test_used_up_epochs_mean_another_producer_id(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    producer = TransactionalProducer(plane.service, version=2)
    await producer.init()
    known = plane.service.parts.transactions._ids["tx"]
    known.epoch = producer.epoch = EPOCH_LAST
    await producer.begin(topic)
    before = TransactionalProducer(plane.service, version=2, producer_id=producer.producer_id, epoch=EPOCH_LAST)
    assert await producer.end(commit=True) == 0
    assert producer.producer_id != before.producer_id
    assert producer.epoch == 0
    ((_, marker),) = await markers(plane.service, topic)
    assert (marker.producer_id, marker.producer_epoch) == (before.producer_id, EPOCH_LAST + 1)
    assert await before.end(commit=True) == 0
    assert (before.producer_id, before.epoch) == (producer.producer_id, 0)
    await producer.begin(topic)
    assert await producer.end(commit=True) == 0
    known.epoch = producer.epoch = EPOCH_LAST
    assert await producer.init(bump=True) == 0
    assert producer.epoch == 0
    # A second producer of the id, while the last epoch is in use: its transaction is aborted first.
    known.epoch = producer.epoch = EPOCH_LAST
    await producer.begin(topic)
    second = TransactionalProducer(plane.service, version=2)
    assert await second.init() == 0
    assert (second.producer_id != producer.producer_id, second.epoch) == (True, 0)
    assert await producer.write(topic) == (NO_MAPPING, -1)
    assert await aborted(plane.service, topic) == [(producer.producer_id, 4)]


async def test_timeouts_are_checked(plane: Plane) -> None:
    timeout = int(ErrorCode.invalid_transaction_timeout)
    producer = TransactionalProducer(plane.service)
    assert await producer.init(timeout_ms=0) == timeout
    assert await producer.init(timeout_ms=TransactionSettings().timeout_ms_max + 1) == timeout
    producer.name = ""
    assert await producer.init() == int(ErrorCode.invalid_request)


async def test_an_overdue_transaction_is_aborted_and_its_producer_fenced(
    plane: Plane, producer: TransactionalProducer
) -> None:
    topic = await create_topic(plane.service)
    await producer.begin(topic)
    assert await producer.commit_offset("g", topic, 3) == (WRONG_STATE if producer.version == 1 else 0)
    plane.clock.advance(TIMEOUT_MS / 1000 - 1)
    assert await plane.service.parts.transactions.abort_overdue() == 0
    plane.clock.advance(1)
    assert await plane.service.parts.transactions.abort_overdue() == 1
    assert await stable_offset(plane.service, topic) == 2
    assert await aborted(plane.service, topic) == [(producer.producer_id, 0)]
    assert await producer.write(topic) == (OLD_EPOCH, -1)
    assert await producer.add(topic) == [FENCED]
    assert await producer.end(commit=True) in (FENCED, WRONG_STATE)
    assert await committed_offset(plane.service, "g", topic) == (0, -1)
    assert await producer.init() == 0
    await producer.begin(topic)
    assert await producer.end(commit=True) == 0


async def test_offsets_become_visible_with_the_commit(plane: Plane, producer: TransactionalProducer) -> None:
    topic = await create_topic(plane.service)
    plain = CommitOffsets("g", -1, "", None, [OffsetToCommit(topic.topic_id, 0, 7, -1, "")])
    await plane.service.commit_offsets(plain)
    if producer.version == 1:
        assert await producer.commit_offset("g", topic, 10) == WRONG_STATE
        assert await producer.add_group("g") == 0
    assert await producer.commit_offset("g", topic, 10) == 0
    assert await committed_offset(plane.service, "g", topic) == (0, 7)
    assert await committed_offset(plane.service, "g", topic, stable=True) == (int(ErrorCode.unstable_offset_commit), -1)
    assert await producer.end(commit=False) == 0
    assert await committed_offset(plane.service, "g", topic, stable=True) == (0, 7)
    if producer.version == 1:
        assert await producer.add_group("g") == 0
    assert await producer.commit_offset("g", topic, 11) == 0
    assert await producer.commit_offset("g", topic, 12) == 0
    assert await producer.end(commit=True) == 0
    assert await committed_offset(plane.service, "g", topic, stable=True) == (0, 12)


async def test_offsets_of_a_group_need_its_member(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    producer = TransactionalProducer(plane.service, version=2)
    await producer.init()
    assert await producer.commit_offset("g", topic, 1, member_id="m", generation_id=3) == 22
    await producer.commit_offset("g", topic, 1)
    assert await producer.end(commit=True) == 0
    assert await producer.commit_offset("g", topic, 1, member_id="m", generation_id=3) == 25


async def test_everything_survives_a_restart(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    plane = await start_plane(url)
    topic = await create_topic(plane.service, "t", 2)
    done, ongoing = TransactionalProducer(plane.service, "a"), TransactionalProducer(plane.service, "b", version=2)
    await done.init()
    await ongoing.init()
    await done.begin(topic, 0)
    await done.end(commit=False)
    await commit(plane.service, topic, [batch(3)])
    await ongoing.begin(topic, 0, 1)
    await ongoing.commit_offset("g", topic, 42)
    before = [await bounds(plane.service, topic, index) for index in range(2)]
    await plane.service.close()

    plane = await start_plane(url, clock=plane.clock)
    done.control = ongoing.control = plane.service
    assert [await bounds(plane.service, topic, index) for index in range(2)] == before
    assert await stable_offset(plane.service, topic) == 5
    assert await aborted(plane.service, topic) == [(done.producer_id, 0)]
    assert len(await markers(plane.service, topic)) == 1
    assert await committed_offset(plane.service, "g", topic, stable=True) == (88, -1)
    assert await ongoing.write(topic) == (0, 6)
    assert await ongoing.end(commit=True) == 0
    assert await committed_offset(plane.service, "g", topic) == (0, 42)
    await plane.service.close()

    plane = await start_plane(url, clock=plane.clock)
    ongoing.control = plane.service
    assert await stable_offset(plane.service, topic) == 8
    assert await stable_offset(plane.service, topic, 1) == 2
    assert await committed_offset(plane.service, "g", topic) == (0, 42)
    assert [marker.type for _, marker in await markers(plane.service, topic)] == [MarkerType.ABORT, MarkerType.COMMIT]
    await ongoing.begin(topic)
    await plane.service.close()


async def test_the_front_of_a_log_takes_its_aborted_transactions_with_it(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    producer = TransactionalProducer(plane.service)
    await producer.init()
    for _ in range(3):
        await producer.begin(topic)
        await producer.end(commit=False)
    await producer.begin(topic)
    await plane.service.delete_records(DeleteRecords(topic.partition_ids[0], 3))
    assert await aborted(plane.service, topic) == [(producer.producer_id, 2), (producer.producer_id, 4)]
    await plane.service.delete_records(DeleteRecords(topic.partition_ids[0], -1))
    assert await aborted(plane.service, topic) == []
    assert await stable_offset(plane.service, topic) == 7
    assert await producer.end(commit=False) == 0
    assert await aborted(plane.service, topic) == [(producer.producer_id, 6)]
    assert await stable_offset(plane.service, topic) == 8


async def test_a_topic_may_go_while_a_transaction_is_open(plane: Plane) -> None:
    gone, kept = await create_topic(plane.service, "gone"), await create_topic(plane.service, "kept")
    producer = TransactionalProducer(plane.service)
    await producer.init()
    await producer.begin(gone)
    await producer.begin(kept)
    await producer.add_group("g")
    await producer.commit_offset("g", gone, 3)
    await plane.service.delete_topics(DeleteTopics([TopicRef("gone")]))
    assert await producer.end(commit=True) == 0
    assert await stable_offset(plane.service, kept) == 2
    assert await committed_offset(plane.service, "g", gone) == (0, -1)
    await plane.service.parts.retention.run_once()


async def test_retention_counts_markers(plane: Plane) -> None:
    topic = await create_topic(plane.service, "t", 1, retention_ms="1000")
    producer = TransactionalProducer(plane.service)
    await producer.init()
    await producer.begin(topic)
    await producer.end(commit=False)
    plane.clock.advance(10)
    await plane.service.parts.retention.run_once()
    now = await bounds(plane.service, topic)
    assert (now.log_start_offset, now.high_watermark, now.size_bytes) == (2, 2, 0)
    assert await aborted(plane.service, topic) == []
    await plane.service.parts.sweeper.run_once()
    await producer.begin(topic)
    assert await producer.end(commit=True) == 0
    assert [at for at, _ in await markers(plane.service, topic)] == [3]


async def test_unused_ids_are_forgotten(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    used, ongoing = TransactionalProducer(plane.service, "a"), TransactionalProducer(plane.service, "b")
    await used.init()
    await ongoing.init()
    plane.clock.advance(TransactionSettings().id_expiration_ms / 1000)
    await ongoing.begin(topic)
    assert await plane.service.parts.transactions.expire_once() == 1
    assert await used.add(topic) == [NO_MAPPING]
    old_id = used.producer_id
    assert await used.init() == 0
    assert (used.producer_id != old_id, used.epoch) == (True, 0)
    assert await ongoing.end(commit=True) == 0


async def test_transactions_are_described_and_listed(plane: Plane) -> None:
    topic = await create_topic(plane.service, "t", 2)
    idle, ongoing = TransactionalProducer(plane.service, "a"), TransactionalProducer(plane.service, "b")
    await idle.init()
    await ongoing.init(timeout_ms=5_000)
    await ongoing.begin(topic, 1)
    plane.clock.advance(2)
    found = (await plane.service.describe_transactions(DescribeTransactions(["b", "nobody", ""]))).transactions
    assert [each.error_code for each in found] == [0, 105, 42]
    assert (found[0].state, found[0].timeout_ms, found[0].producer_id) == ("Ongoing", 5_000, ongoing.producer_id)
    assert found[0].partitions == [(topic.topic_id, 1)]

    async def listed(**filters: object) -> list[str]:
        answer = await plane.service.list_transactions(ListTransactions(**filters))  # type: ignore[arg-type]
        return [each.transactional_id for each in answer.transactions]

    assert await listed() == ["a", "b"]
    assert await listed(states=["Empty"]) == ["a"]
    assert await listed(producer_ids=[ongoing.producer_id]) == ["b"]
    assert await listed(duration_ms_min=2_000) == ["b"]
    assert await listed(duration_ms_min=2_001) == []
    assert await listed(pattern="[b-z]") == ["b"]
    assert (await plane.service.list_transactions(ListTransactions(pattern="("))).error_code == 128
    producers = (await plane.service.describe_producers(DescribeProducers([topic.partition_ids[1], 999]))).partitions
    ((writer,),) = (each.producers for each in producers)
    assert (writer.producer_id, writer.last_sequence, writer.transaction_start_offset) == (ongoing.producer_id, 0, 0)


async def test_many_transactions_settle_as_objects_do(plane: Plane) -> None:
    """The limit of recent extents is 8 here, so markers move into the table all the time."""
    topic = await create_topic(plane.service, "t", 3)
    producer = TransactionalProducer(plane.service, version=2)
    await producer.init()
    for number in range(30):
        await producer.begin(topic, 0, 1, 2)
        await producer.end(commit=number % 3 != 0)
    for index in range(3):
        assert [at for at, _ in await markers(plane.service, topic, index)] == list(range(1, 60, 2))
        assert await stable_offset(plane.service, topic, index) == 60
        assert len(await aborted(plane.service, topic, index)) == 10


async def test_the_number_of_ids_is_limited() -> None:
    plane = await start_plane(settings=ControlSettings(transactions=TransactionSettings(ids_max=1)))
    assert (await plane.service.init_producer_id(InitProducerId("a", 1000))).error_code == 0
    assert (await plane.service.init_producer_id(InitProducerId("b", 1000))).error_code == 44
    assert (await plane.service.init_producer_id(InitProducerId("a", 1000))).error_code == 0
    await plane.service.close()
