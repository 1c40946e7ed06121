"""The transaction APIs as clients call them: the codes that each version knows, and what they say of a transaction."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta
from tests.agent.apis.api_caller import ApiCaller, Part, part
from tests.agent.apis.topic_calls import TIMEOUT

from braidlog.agent.apis.cluster.api_18_api_versions import respond
from braidlog.control.interface import CreateTopics, NewTopic, SnapshotRequest
from braidlog.wire.header import RequestHeader

FIND, INIT, ADD, ADD_OFFSETS, END, OFFSETS, FETCH_OFFSETS, PRODUCERS, DESCRIBE, LIST = (
    10,
    22,
    24,
    25,
    26,
    28,
    9,
    61,
    65,
    66,
)
MARKERS = 27
MINUTE = i32Timedelta.parse(timedelta(minutes=1))


@pytest.fixture(autouse=True)
async def topic(agent: SimpleNamespace) -> None:
    await agent.control.create_topics(CreateTopics([NewTopic("t", 2)]))
    agent.view.load(await agent.control.snapshot(SnapshotRequest()))


async def init(call: ApiCaller, name: str | None = "tx", *, version: int = 5, **values: Any) -> Any:
    return await call(
        INIT,
        part(
            "InitProducerIdRequest",
            **{
                "transactional_id": name,
                "transaction_timeout": MINUTE,
                "producer_id": -1,
                "producer_epoch": -1,
                **values,
            },
        ),
        version=version,
    )


async def owner(call: ApiCaller, name: str = "tx") -> dict[str, Any]:
    answer = await init(call, name)
    assert answer.error_code is ErrorCode.none
    return {
        "transactional_id": name,
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }


async def add(call: ApiCaller, who: dict[str, Any], *partitions: int, version: int = 3, topic: str = "t") -> list[Any]:
    request = part(
        "AddPartitionsToTxnRequest",
        **{f"v3_and_below_{name}": value for name, value in who.items()},
        v3_and_below_topics=[part("AddPartitionsToTxnTopic", name=topic, partitions=partitions)],
    )
    answer = await call(ADD, request, version=version)
    [found] = answer.results_by_topic_v3_and_below
    return [each.partition_error_code for each in found.results_by_partition]


async def end(call: ApiCaller, who: dict[str, Any], *, commit: bool = True, version: int = 5) -> Any:
    return await call(END, part("EndTxnRequest", **who, committed=commit), version=version)


async def test_a_coordinator_for_transactions(call: ApiCaller) -> None:
    response = await call(FIND, part("FindCoordinatorRequest", key_type=1, coordinator_keys=("tx",)))
    [found] = response.coordinators
    assert found.error_code is ErrorCode.none
    assert found.node_id in call.agent.view.agents


async def test_who_is_fenced_is_told_in_words_that_it_knows(call: ApiCaller) -> None:
    first = await owner(call)
    await owner(call)
    for version in (0, 1):
        assert await add(call, first, 0, version=version) == [ErrorCode.invalid_producer_epoch]
        request = part("AddOffsetsToTxnRequest", **first, group_id="g")
        assert (await call(ADD_OFFSETS, request, version=version)).error_code is ErrorCode.invalid_producer_epoch
        assert (await end(call, first, version=version)).error_code is ErrorCode.invalid_producer_epoch
    for version in (2, 3):
        assert await add(call, first, 0, version=version) == [ErrorCode.producer_fenced]
        assert (await end(call, first, version=version)).error_code is ErrorCode.producer_fenced
    identity = {"producer_id": first["producer_id"], "producer_epoch": first["producer_epoch"]}
    assert (await init(call, version=3, **identity)).error_code is ErrorCode.invalid_producer_epoch
    assert (await init(call, version=4, **identity)).error_code is ErrorCode.producer_fenced


async def test_requests_that_make_no_sense(call: ApiCaller) -> None:
    assert (await init(call, "")).error_code is ErrorCode.invalid_request
    assert (await init(call, producer_id=3)).error_code is ErrorCode.invalid_request
    day = i32Timedelta.parse(timedelta(days=1))
    assert (await init(call, transaction_timeout=day)).error_code is ErrorCode.invalid_transaction_timeout
    nobody = {"transactional_id": "nobody", "producer_id": 7, "producer_epoch": 0}
    assert await add(call, nobody, 0) == [ErrorCode.invalid_producer_id_mapping]
    assert (await end(call, nobody)).error_code is ErrorCode.invalid_producer_id_mapping
    who = await owner(call)
    unknown, others = ErrorCode.unknown_topic_or_partition, ErrorCode.operation_not_attempted
    assert await add(call, who, 0, 7) == [others, unknown]
    assert await add(call, who, 0, topic="nowhere") == [unknown]
    assert (await end(call, who, version=4)).error_code is ErrorCode.invalid_txn_state


async def test_many_producers_at_once(call: ApiCaller) -> None:
    first, second = await owner(call, "a"), await owner(call, "b")
    topics = [part("AddPartitionsToTxnTopic", name="t", partitions=(0, 1))]

    async def ask(version: int, verify_only: bool) -> list[list[ErrorCode]]:
        answer = await call(
            ADD,
            part(
                "AddPartitionsToTxnRequest",
                transactions=[
                    part("AddPartitionsToTxnTransaction", **each, verify_only=verify_only, topics=topics)
                    for each in (first, second)
                ],
            ),
            version=version,
        )
        assert answer.error_code is ErrorCode.none
        return [
            [each.partition_error_code for each in found.topic_results[0].results_by_partition]
            for found in answer.results_by_transaction
        ]

    assert await ask(4, True) == [[ErrorCode.invalid_txn_state] * 2] * 2
    assert await ask(5, True) == [[ErrorCode.transaction_abortable] * 2] * 2
    assert await ask(5, False) == [[ErrorCode.none] * 2] * 2
    assert await ask(4, True) == [[ErrorCode.none] * 2] * 2


async def test_version_2_gives_a_new_epoch_with_every_end(call: ApiCaller) -> None:
    who = await owner(call)
    assert await add(call, who, 0) == [ErrorCode.none]
    old = await end(call, who, version=4)
    assert old.error_code is ErrorCode.none
    assert await add(call, who, 0) == [ErrorCode.none]
    answer = await end(call, who)
    assert answer.error_code is ErrorCode.none
    assert (answer.producer_id, answer.producer_epoch) == (who["producer_id"], who["producer_epoch"] + 1)
    again = await end(call, who)
    assert (again.error_code, again.producer_epoch) == (ErrorCode.none, answer.producer_epoch)


async def test_offsets_in_a_transaction(call: ApiCaller) -> None:
    who = await owner(call)

    async def commit(version: int, offset: int, identity: dict[str, Any] = who, topic: str = "t") -> ErrorCode:
        places = [
            part(
                "TxnOffsetCommitRequestPartition",
                partition_index=0,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata="",
            )
        ]
        request = part(
            "TxnOffsetCommitRequest",
            **identity,
            group_id="g",
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[part("TxnOffsetCommitRequestTopic", name=topic, partitions=places)],
        )
        answer = await call(OFFSETS, request, version=version)
        code: ErrorCode = answer.topics[0].partitions[0].error_code
        return code

    async def fetch(*, stable: bool) -> tuple[ErrorCode, int]:
        topics = [part("OffsetFetchRequestTopic", name="t", partition_indexes=(0,))]
        request = part("OffsetFetchRequest", group_id="g", topics=topics, require_stable=stable)
        [found] = (await call(FETCH_OFFSETS, request, version=7)).topics[0].partitions
        return found.error_code, found.committed_offset

    assert await commit(3, 5) is ErrorCode.invalid_txn_state
    assert await commit(4, 5) is ErrorCode.transaction_abortable
    assert await commit(5, 5) is ErrorCode.none
    assert await commit(5, 5, topic="nowhere") is ErrorCode.unknown_topic_or_partition
    old = {**who, "producer_epoch": who["producer_epoch"] + 1}
    assert await commit(5, 5, old) is ErrorCode.invalid_producer_epoch
    assert await fetch(stable=False) == (ErrorCode.none, -1)
    assert await fetch(stable=True) == (ErrorCode.unstable_offset_commit, -1)
    assert (await end(call, who)).error_code is ErrorCode.none
    assert await fetch(stable=True) == (ErrorCode.none, 5)


async def test_described(call: ApiCaller) -> None:
    who = await owner(call)
    await add(call, who, 1)
    request = part("DescribeTransactionsRequest", transactional_ids=("tx", "nobody"))
    found, unknown = (await call(DESCRIBE, request)).transaction_states
    assert (found.transaction_state, found.producer_id) == ("Ongoing", who["producer_id"])
    assert [(each.topic, each.partitions) for each in found.topics] == [("t", (1,))]
    assert unknown.error_code is ErrorCode.transactional_id_not_found
    topics = [part("TopicRequest", name="t", partition_indexes=(0, 9))]
    [answer] = (await call(PRODUCERS, part("DescribeProducersRequest", topics=topics))).topics
    assert [each.error_code for each in answer.partitions] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]


def markers(who: dict[str, Any], index: int, *, commit: bool = False) -> Part:
    marker = part(
        "WritableTxnMarker",
        producer_id=who["producer_id"],
        producer_epoch=who["producer_epoch"],
        transaction_result=commit,
        topics=[part("WritableTxnMarkerTopic", name="t", partition_indexes=(index,))],
        coordinator_epoch=0,
        transaction_version=0,
    )
    return part("WriteTxnMarkersRequest", markers=[marker])


async def test_a_hanging_transaction_is_aborted_by_an_administrator(call: ApiCaller) -> None:
    who, other = await owner(call), await owner(call, "other")
    await add(call, who, 1)
    await add(call, other, 1)

    async def mark(who: dict[str, Any], index: int, **values: bool) -> ErrorCode:
        [marker] = (await call(MARKERS, markers(who, index, **values))).markers
        code: ErrorCode = marker.topics[0].partitions[0].error_code
        return code

    async def states() -> list[str]:
        request = part("ListTransactionsRequest", state_filters=(), producer_id_filters=())
        answers = [await at_agent(LIST, request) for at_agent in call.everywhere()]
        found = {each.transactional_id: each.transaction_state for one in answers for each in one.transaction_states}
        return [found["tx"], found["other"]]

    assert await mark(who, 9) is ErrorCode.unknown_topic_or_partition
    assert await mark(who, 1, commit=True) is ErrorCode.invalid_request
    assert await mark({**who, "producer_epoch": -1}, 1) is ErrorCode.invalid_producer_epoch
    assert await mark({**who, "producer_id": 12345}, 1) is ErrorCode.none  # nobody: there is nothing to abort
    assert await mark(who, 0) is ErrorCode.none  # not part of it
    assert await states() == ["Ongoing", "Ongoing"]
    assert await mark(who, 1) is ErrorCode.none
    assert await states() == ["CompleteAbort", "Ongoing"]
    assert (await end(call, who)).error_code is ErrorCode.producer_fenced


def test_clients_are_told_of_version_2() -> None:
    _, body = respond(RequestHeader(18, 4, 1, "c", 0), {})
    assert b"transaction.version\x00\x00\x00\x02" in bytes(body)
    assert b"transaction.version\x00\x02\x00\x02" in bytes(body)


async def test_a_transactional_id_is_listed_by_its_coordinator_alone(call: ApiCaller) -> None:
    names = [f"tx-{number}" for number in range(20)]
    for name in names:
        await init(call, name)
    for at_agent in call.everywhere():
        answer = await at_agent(LIST, part("ListTransactionsRequest", state_filters=(), producer_id_filters=()))
        found = await at_agent(FIND, part("FindCoordinatorRequest", key_type=1, coordinator_keys=names))
        here = {each.key for each in found.coordinators if each.node_id == at_agent.agent.session.node_id}
        assert {each.transactional_id for each in answer.transaction_states} == here
        assert here


async def test_producer_ids_are_all_different(call: ApiCaller) -> None:
    request = part("InitProducerIdRequest", transactional_id=None, transaction_timeout=TIMEOUT)
    answers = [await call(22, request) for _ in range(3)]
    assert {answer.error_code for answer in answers} == {ErrorCode.none}
    assert len({answer.producer_id for answer in answers}) == 3
    assert {answer.producer_epoch for answer in answers} == {0}
