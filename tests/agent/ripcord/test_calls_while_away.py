"""What clients are told while the control plane is away: at once, and nothing that makes them give up."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from braidlog.agent.apis.dispatch import API_VERSIONS
from braidlog.runtime.limits import PRODUCER_IDS_OF_AGENTS_FROM
from braidlog.sim.clients.wire_client import WireClient, request_types
from braidlog.sim.cluster import CONTROL_HOST, ClusterPlan
from braidlog.sim.history import FinalRead, Send
from braidlog.sim.world import World, simulate

FEW_S = i32Timedelta.parse(timedelta(seconds=30))

RETRIABLE = {
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.not_controller,
    ErrorCode.request_timed_out,
    ErrorCode.not_enough_replicas,
}
"""Errors after which every client that we know tries again."""


def in_an_outage(check: Callable[[World, WireClient], Awaitable[None]], plan: ClusterPlan | None = None) -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("events", 1)
        connection = await world.session("asker").any_connection()
        await world.sleep(1.0)
        world.cluster.kill(CONTROL_HOST)
        await world.sleep(20.0)
        agent = world.cluster.agents["agent-0"]
        assert agent.reachability.is_away
        await check(world, connection)

    run = simulate(1, scenario, plan or ClusterPlan(agent_count=1))
    assert run.error == ""


def codes_of(answer: Any) -> list[ErrorCode]:
    """Every error code anywhere in an answer."""
    found: list[ErrorCode] = []
    unseen = [answer]
    while unseen:
        each = unseen.pop()
        if isinstance(each, tuple | list):
            unseen.extend(each)
        elif hasattr(type(each), "__dataclass_fields__"):
            for name in type(each).__dataclass_fields__:
                value = getattr(each, name)
                if name in {"error_code", "partition_error_code"}:
                    found.append(value)
                else:
                    unseen.append(value)
    return found


def requests() -> dict[str, tuple[int, int, dict[str, Any]]]:
    """Return API key, version and fields of the requests that clients send, by name."""
    return {
        "list offsets": (2, 7, {"replica_id": -1, "isolation_level": 0, "topics": [_list_offsets_topic()]}),
        "offset commit": (
            8,
            8,
            {
                "group_id": "g",
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": [_offset_commit_topic()],
            },
        ),
        "offset fetch": (9, 7, {"group_id": "g", "topics": None, "require_stable": False}),
        "find coordinator": (10, 3, {"key": "g", "key_type": 0}),
        "join group": (
            11,
            7,
            {
                "group_id": "g",
                "session_timeout": FEW_S,
                "rebalance_timeout": FEW_S,
                "member_id": "",
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocols": [_protocol()],
            },
        ),
        "heartbeat": (12, 4, {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}),
        "leave group": (13, 1, {"group_id": "g", "member_id": "m"}),
        "sync group": (
            14,
            4,
            {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None, "assignments": ()},
        ),
        "describe groups": (15, 5, {"groups": ("g",), "include_authorized_operations": False}),
        "list groups": (16, 4, {"states_filter": ()}),
        "create topics": (19, 7, {"topics": (_new_topic(),), "timeout": FEW_S, "validate_only": False}),
        "delete topics": (20, 5, {"topic_names": ("events",), "timeout": FEW_S}),
        "delete records": (21, 2, {"topics": (_delete_records_topic(),), "timeout": FEW_S}),
        "init transactions": (
            22,
            4,
            {"transactional_id": "t", "transaction_timeout": FEW_S, "producer_id": -1, "producer_epoch": -1},
        ),
        "add offsets": (25, 3, {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0, "group_id": "g"}),
        "end transaction": (26, 3, {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0, "committed": True}),
        "create partitions": (37, 3, {"topics": (_more_partitions(),), "timeout": FEW_S, "validate_only": False}),
        "delete groups": (42, 2, {"groups_names": ("g",)}),
        "consumer heartbeat": (68, 0, _consumer_heartbeat()),
    }


def _list_offsets_topic() -> Any:
    types = request_types(2, 7)
    partition = types.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    return types.ListOffsetsTopic(name="events", partitions=(partition,))


def _offset_commit_topic() -> Any:
    types = request_types(8, 8)
    partition = types.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata=None
    )
    return types.OffsetCommitRequestTopic(name="events", partitions=(partition,))


def _protocol() -> Any:
    return request_types(11, 7).JoinGroupRequestProtocol(name="range", metadata=b"")


def _new_topic() -> Any:
    return request_types(19, 7).CreatableTopic(
        name="more", num_partitions=1, replication_factor=-1, assignments=(), configs=()
    )


def _delete_records_topic() -> Any:
    types = request_types(21, 2)
    partition = types.DeleteRecordsPartition(partition_index=0, offset=0)
    return types.DeleteRecordsTopic(name="events", partitions=(partition,))


def _more_partitions() -> Any:
    return request_types(37, 3).CreatePartitionsTopic(name="events", count=3, assignments=None)


def _consumer_heartbeat() -> dict[str, Any]:
    return {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": FEW_S,
        "subscribed_topic_names": ("events",),
        "server_assignor": None,
        "topic_partitions": (),
    }


def _entity(key: int, version: int, fields: dict[str, Any]) -> Any:
    module = request_types(key, version)
    name = next(
        each for each in vars(module) if each.endswith("Request") and hasattr(getattr(module, each), "__api_key__")
    )
    values = {field: tuple(value) if isinstance(value, list) else value for field, value in fields.items()}
    return getattr(module, name)(**values)


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[Any, float]]:
    """What each request is answered in an outage, and after how long."""
    found: dict[str, tuple[Any, float]] = {}

    async def ask(world: World, connection: WireClient) -> None:
        for name, (key, version, fields) in requests().items():
            started_s = world.loop.time()
            answer = await connection.call(key, version, _entity(key, version, fields))
            found[name] = (answer, world.loop.time() - started_s)

    in_an_outage(ask)
    return found


@pytest.mark.parametrize("name", requests())
def test_at_once_and_retriably(name: str, answers: dict[str, tuple[Any, float]]) -> None:
    assert requests()[name][0] in API_VERSIONS
    answer, took_s = answers[name]
    assert took_s < 0.5
    codes = codes_of(answer)
    assert codes
    assert set(codes) <= RETRIABLE
    if name != "init transactions" and hasattr(answer, "throttle_time"):
        assert timedelta(milliseconds=400) <= answer.throttle_time <= timedelta(milliseconds=1600)


def test_a_fetch_does_not_wait() -> None:
    async def check(world: World, connection: WireClient) -> None:
        types = request_types(1, 11)
        request = types.FetchRequest(
            max_wait=FEW_S,
            min_bytes=1,
            max_bytes=1_000_000,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=(
                types.FetchTopic(
                    topic="events",
                    partitions=(
                        types.FetchPartition(
                            partition=0,
                            current_leader_epoch=-1,
                            fetch_offset=0,
                            log_start_offset=-1,
                            partition_max_bytes=1_000_000,
                        ),
                    ),
                ),
            ),
            forgotten_topics_data=(),
            rack_id="",
        )
        for _ in range(2):
            started_s = world.loop.time()
            answer = await connection.call(1, 11, request)
            assert world.loop.time() - started_s < 2.0  # the second one: not read for as long as it was told to wait
            assert codes_of(answer.responses) == [ErrorCode.not_leader_or_follower]
            assert answer.throttle_time > timedelta(0)

    in_an_outage(check)


def test_metadata_is_served_as_it_was_and_new_topics_have_to_wait() -> None:
    async def check(world: World, connection: WireClient) -> None:
        types = request_types(3, 12)
        names = [types.MetadataRequestTopic(topic_id=None, name=name) for name in ("events", "unheard-of")]
        answer = await connection.call(
            3,
            12,
            types.MetadataRequest(
                topics=tuple(names), allow_auto_topic_creation=True, include_topic_authorized_operations=False
            ),
        )
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.none, ErrorCode.leader_not_available]
        assert [broker.host for broker in answer.brokers] == ["agent-0"]

    in_an_outage(check)


def test_new_idempotent_producers_get_ids_from_the_bucket() -> None:
    async def check(world: World, connection: WireClient) -> None:
        request = _entity(
            22,
            4,
            {"transactional_id": None, "transaction_timeout": FEW_S, "producer_id": -1, "producer_epoch": -1},
        )
        answers = await asyncio.gather(*(connection.call(22, 4, request) for _ in range(3)))
        assert {answer.error_code for answer in answers} == {ErrorCode.none}
        ids = [answer.producer_id for answer in answers]
        assert len(set(ids)) == 3
        assert min(ids) >= PRODUCER_IDS_OF_AGENTS_FROM

    in_an_outage(check)


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_no_write_fails_where_an_outage_begins_or_ends(mode: str) -> None:
    """Not even in a way that a producer would try again after: what was on its way is journaled instead."""

    async def scenario(world: World) -> None:
        await world.create_topic("events", 2)
        producers = [world.producer(world.targets("events"), idempotent=idempotent) for idempotent in (True, False)]
        await world.sleep(5.0)
        for _ in range(2):
            world.cluster.kill(CONTROL_HOST)
            await world.sleep(20.0)
            world.cluster.boot(CONTROL_HOST)
            await world.sleep(30.0)
        for producer in producers:
            producer.stopping = True
        agents = list(world.cluster.agents.values())
        assert all(agent.reachability.outages == 2 for agent in agents)
        assert all(agent.ripcord.state == "present" for agent in agents)

    run = simulate(3, scenario, ClusterPlan(ripcord=mode))
    assert run.error == ""
    sends = [event for event in run.history.operations if isinstance(event, Send)]
    assert len(sends) > 500
    assert {(send.outcome, send.retried) for send in sends} == {("ok", False)}
    values: Counter[str] = Counter()
    for event in run.history.operations:
        if isinstance(event, FinalRead):
            values.update(value for _, value in event.records)
    assert values == Counter(send.value for send in sends)
