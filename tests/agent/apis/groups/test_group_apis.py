"""Consumer groups and their offsets, asked for as clients do."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta
from tests.agent.apis.api_caller import ApiCaller, part

from braidlog.agent.cluster.placement import coordinator_of
from braidlog.control.interface import (
    AgentChanged,
    AgentInfo,
    AgentRemoved,
    CreateTopics,
    FetchOffsets,
    FetchOffsetsAnswer,
    NewTopic,
    SnapshotRequest,
)
from braidlog.runtime.errors import ControlUnavailable

COMMIT, FETCH, FIND, JOIN, BEAT, LEAVE, SYNC, DESCRIBE, LIST = 8, 9, 10, 11, 12, 13, 14, 15, 16
DELETE_GROUPS, DELETE_OFFSETS = 42, 47
TEN_SECONDS = i32Timedelta.parse(timedelta(seconds=10))
SUBSCRIPTION = b"\x00\x00" + (1).to_bytes(4, "big") + (4).to_bytes(2, "big") + b"read" + b"\xff\xff\xff\xff"
"""Kafka's consumer subscription, version 0, to the topic `read`."""


@pytest.fixture(autouse=True)
async def topics(agent: SimpleNamespace) -> dict[str, UUID]:
    answer = await agent.control.create_topics(CreateTopics([NewTopic("read", 2), NewTopic("idle", 1)]))
    agent.view.load(await agent.control.snapshot(SnapshotRequest()))
    return {each.name: UUID(bytes=each.topic.topic_id) for each in answer.outcomes if each.topic is not None}


# ── FindCoordinator ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_all_agents_name_the_same_coordinator(call: ApiCaller) -> None:
    view = call.agent.view
    groups = [f"group-{number}" for number in range(50)]
    response = await call(FIND, part("FindCoordinatorRequest", key_type=0, coordinator_keys=groups))
    named = {each.key: each.node_id for each in response.coordinators}
    assert {each.error_code for each in response.coordinators} == {ErrorCode.none}
    assert set(named.values()) == set(view.agents)  # spread
    old = await call(FIND, part("FindCoordinatorRequest", key=groups[0]), version=0)
    assert (old.error_code, old.node_id) == (ErrorCode.none, named[groups[0]])
    # An agent that comes takes some groups over, and moves no other.
    view.apply([AgentChanged(AgentInfo(77, "late", "127.0.0.1", 9099, ""))], view.position)
    later = {group: coordinator_of(group, view) for group in groups}
    moved = {group for group, agent in later.items() if agent is not None and agent.node_id != named[group]}
    assert moved == {group for group, agent in later.items() if agent is not None and agent.node_id == 77}
    assert 0 < len(moved) < len(groups)


async def test_no_coordinator(call: ApiCaller) -> None:
    [coordinator] = (await call(FIND, part("FindCoordinatorRequest", key_type=2, coordinator_keys=("s",)))).coordinators
    assert coordinator.error_code is ErrorCode.invalid_request
    view = call.agent.view
    view.apply([AgentRemoved(node_id) for node_id in list(view.agents)], view.position)
    [coordinator] = (await call(FIND, part("FindCoordinatorRequest", key_type=0, coordinator_keys=("g",)))).coordinators
    assert coordinator.error_code is ErrorCode.coordinator_not_available


# ── membership ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def join(call: ApiCaller, group: str, member_id: str = "", *, version: int = 9, **values: Any) -> Any:
    request = {
        "group_id": group,
        "session_timeout": TEN_SECONDS,
        "rebalance_timeout": TEN_SECONDS,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [part("JoinGroupRequestProtocol", name="range", metadata=SUBSCRIPTION)],
    }
    return await call(JOIN, part("JoinGroupRequest", **request | values), version=version)


async def sync(call: ApiCaller, group: str, joined: Any, assignments: dict[str, bytes], version: int = 5) -> Any:
    request = part(
        "SyncGroupRequest",
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            part("SyncGroupRequestAssignment", member_id=member_id, assignment=assignment)
            for member_id, assignment in assignments.items()
        ],
    )
    return await call(SYNC, request, version=version)


async def settle(call: ApiCaller, group: str) -> Any:
    """A group with one member, stable. Returns the member's join."""
    known = await join(call, group)
    assert known.error_code is ErrorCode.member_id_required
    joined = await join(call, group, known.member_id)
    assert joined.error_code is ErrorCode.none
    synced = await sync(call, group, joined, {joined.member_id: b"mine"})
    assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"mine")
    return joined


def beat(group: str, joined: Any, generation_id: int | None = None) -> Any:
    generation_id = joined.generation_id if generation_id is None else generation_id
    return part("HeartbeatRequest", group_id=group, generation_id=generation_id, member_id=joined.member_id)


async def test_the_life_of_a_group(call: ApiCaller) -> None:
    first = await settle(call, "g")
    assert (first.leader, first.protocol_type, first.protocol_name) == (first.member_id, "consumer", "range")
    assert [(each.member_id, each.metadata) for each in first.members] == [(first.member_id, SUBSCRIPTION)]
    assert (await call(BEAT, beat("g", first))).error_code is ErrorCode.none
    assert (await call(BEAT, beat("g", first, 99))).error_code is ErrorCode.illegal_generation

    second = await join(call, "g")
    joining = asyncio.create_task(join(call, "g", second.member_id))
    while (await call(BEAT, beat("g", first))).error_code is not ErrorCode.rebalance_in_progress:
        await asyncio.sleep(0)
    first = await join(call, "g", first.member_id)
    second = await joining
    assert second.generation_id == first.generation_id
    assert (len(first.members), len(second.members)) == (2, 0)
    waiting = asyncio.create_task(sync(call, "g", second, {}))
    assignments = {first.member_id: b"one", second.member_id: b"two"}
    assert (await sync(call, "g", first, assignments)).assignment == b"one"
    assert (await waiting).assignment == b"two"

    request = part("DescribeGroupsRequest", groups=("g",), include_authorized_operations=True)
    [described] = (await call(DESCRIBE, request)).groups
    assert (described.error_code, described.group_state, described.protocol_data) == (ErrorCode.none, "Stable", "range")
    assert {each.member_id: each.member_assignment for each in described.members} == assignments
    assert {each.client_id for each in described.members} == {"tests"}
    assert described.authorized_operations == 3400

    leaving = [part("MemberIdentity", member_id=member_id) for member_id in (*assignments, "nobody")]
    left = await call(LEAVE, part("LeaveGroupRequest", group_id="g", members=leaving))
    assert left.error_code is ErrorCode.none
    codes = [each.error_code for each in left.members]
    assert codes == [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_member_id]


@pytest.mark.parametrize("version", [0, 1, 3])
async def test_old_clients_join_at_once(call: ApiCaller, version: int) -> None:
    joined = await join(call, "old", version=version)
    assert joined.error_code is ErrorCode.none
    assert joined.member_id
    assert (await sync(call, "old", joined, {joined.member_id: b"a"}, version=0)).assignment == b"a"
    assert (await call(BEAT, beat("old", joined), version=0)).error_code is ErrorCode.none
    leave = part("LeaveGroupRequest", group_id="old", member_id=joined.member_id)
    assert (await call(LEAVE, leave, version=0)).error_code is ErrorCode.none
    assert (await call(LEAVE, leave, version=0)).error_code is ErrorCode.unknown_member_id


async def test_a_static_member_needs_no_second_join(call: ApiCaller) -> None:
    joined = await join(call, "static", group_instance_id="i")
    assert joined.error_code is ErrorCode.none
    assert joined.members[0].group_instance_id == "i"


@pytest.mark.parametrize(("version", "name"), [(6, ""), (7, None)])
async def test_joins_that_are_refused(call: ApiCaller, version: int, name: str | None) -> None:
    nobody = await join(call, "g", "no-such-member", version=version)
    assert (nobody.error_code, nobody.protocol_name) == (ErrorCode.unknown_member_id, name)
    assert (await join(call, "", version=version)).error_code is ErrorCode.invalid_group_id
    second = i32Timedelta.parse(timedelta(milliseconds=1))
    hasty = await join(call, "g", version=version, session_timeout=second)
    assert hasty.error_code is ErrorCode.invalid_session_timeout


# ── offsets ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def commit(group: str, topic: dict[str, Any], offsets: dict[int, int], **values: Any) -> Any:
    partitions = [
        part(
            "OffsetCommitRequestPartition",
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=0,
            committed_metadata="note",
        )
        for index, offset in offsets.items()
    ]
    topics = [part("OffsetCommitRequestTopic", partitions=partitions, **topic)]
    return part("OffsetCommitRequest", **{"group_id": group, "member_id": "", "topics": topics} | values)


def codes(response: Any) -> list[ErrorCode]:
    return [partition.error_code for topic in response.topics for partition in topic.partitions]


@pytest.mark.parametrize("commit_version", [2, 6, 9, 10])
@pytest.mark.parametrize("fetch_version", [1, 2, 5, 7, 8, 9, 10])
async def test_what_is_committed_is_fetched(
    call: ApiCaller, topics: dict[str, UUID], commit_version: int, fetch_version: int
) -> None:
    wanted = commit("g", {"name": "read", "topic_id": topics["read"]}, {0: 5, 1: 7})
    response = await call(COMMIT, wanted, version=commit_version)
    assert codes(response) == [ErrorCode.none] * 2
    partitions = (1, 0, 9)
    request = part(
        "OffsetFetchRequest",
        group_id="g",
        topics=[part("OffsetFetchRequestTopic", name="read", partition_indexes=partitions)],
        groups=[
            part(
                "OffsetFetchRequestGroup",
                group_id="g",
                topics=[
                    part(
                        "OffsetFetchRequestTopics",
                        name="read",
                        topic_id=topics["read"],
                        partition_indexes=partitions,
                    )
                ],
            )
        ],
    )
    response = await call(FETCH, request, version=fetch_version)
    holder = response.groups[0] if fetch_version >= 8 else response
    [topic] = holder.topics
    found = [(each.partition_index, each.committed_offset, each.metadata, each.error_code) for each in topic.partitions]
    assert found == [
        (1, 7, "note", ErrorCode.none),
        (0, 5, "note", ErrorCode.none),
        (9, -1, "", ErrorCode.none),
    ]
    if fetch_version >= 10:
        assert topic.topic_id == topics["read"]
    else:
        assert topic.name == "read"


@pytest.mark.parametrize("version", [2, 7, 8, 10])
async def test_all_offsets_of_a_group(call: ApiCaller, topics: dict[str, UUID], version: int) -> None:
    for name, offset in (("read", 5), ("idle", 6)):
        await call(COMMIT, commit("g", {"name": name, "topic_id": topics[name]}, {0: offset}))
    groups = [part("OffsetFetchRequestGroup", group_id=group, topics=None) for group in ("g", "unknown")]
    response = await call(FETCH, part("OffsetFetchRequest", group_id="g", topics=None, groups=groups), version=version)
    holder = response.groups[0] if version >= 8 else response
    found = {
        topic.topic_id if version >= 10 else topics[topic.name]: [each.committed_offset for each in topic.partitions]
        for topic in holder.topics
    }
    assert found == {topics["read"]: [5], topics["idle"]: [6]}
    if version >= 8:
        assert (response.groups[1].error_code, response.groups[1].topics) == (ErrorCode.none, ())


@pytest.mark.parametrize("version", [1, 2, 7, 8, 10])
@pytest.mark.parametrize("trouble", [None, ErrorCode.not_coordinator, ErrorCode.coordinator_not_available])
async def test_whoever_cannot_be_told_offsets_now_is_told_to_ask_again(
    call: ApiCaller, topics: dict[str, UUID], version: int, trouble: ErrorCode | None
) -> None:
    async def fetch_offsets(request: FetchOffsets, *, timeout_s: float | None = None) -> FetchOffsetsAnswer:
        if trouble is None:
            raise ControlUnavailable("away")
        return FetchOffsetsAnswer(trouble, [])

    call.agent.control = SimpleNamespace(fetch_offsets=fetch_offsets)
    older = [part("OffsetFetchRequestTopic", name="read", partition_indexes=(0,))]
    newer = [part("OffsetFetchRequestTopics", name="read", topic_id=topics["read"], partition_indexes=(0,))]
    groups = [part("OffsetFetchRequestGroup", group_id="g", topics=newer)]
    response = await call(FETCH, part("OffsetFetchRequest", group_id="g", topics=older, groups=groups), version=version)
    if version == 1:
        assert codes(response) == [ErrorCode.coordinator_load_in_progress]
    else:
        holder = response.groups[0] if version >= 8 else response
        assert (holder.error_code, holder.topics) == (ErrorCode.coordinator_load_in_progress, ())


async def test_an_unknown_group_or_topic_has_no_offsets_and_no_error(call: ApiCaller) -> None:
    wanted = [part("OffsetFetchRequestTopic", name=name, partition_indexes=(0,)) for name in ("read", "nowhere")]
    response = await call(FETCH, part("OffsetFetchRequest", group_id="unknown", topics=wanted), version=7)
    assert response.error_code is ErrorCode.none
    found = [
        (topic.name, topic.partitions[0].committed_offset, topic.partitions[0].error_code) for topic in response.topics
    ]
    assert found == [("read", -1, ErrorCode.none), ("nowhere", -1, ErrorCode.none)]
    by_id = [part("OffsetFetchRequestTopics", topic_id=UUID(int=5), partition_indexes=(0,))]
    groups = [part("OffsetFetchRequestGroup", group_id="unknown", topics=by_id)]
    [group] = (await call(FETCH, part("OffsetFetchRequest", groups=groups))).groups
    assert group.topics[0].partitions[0].error_code is ErrorCode.unknown_topic_id


async def test_commits_that_are_refused(call: ApiCaller, topics: dict[str, UUID]) -> None:
    read = {"name": "read", "topic_id": topics["read"]}
    nowhere = {"name": "nowhere", "topic_id": UUID(int=5)}
    assert codes(await call(COMMIT, commit("g", nowhere, {0: 1}), version=9)) == [ErrorCode.unknown_topic_or_partition]
    assert codes(await call(COMMIT, commit("g", nowhere, {0: 1}))) == [ErrorCode.unknown_topic_id]
    mixed = codes(await call(COMMIT, commit("g", read, {0: 1, 2: 1})))
    assert mixed == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
    joined = await settle(call, "h")
    member = {"generation_id_or_member_epoch": joined.generation_id, "member_id": joined.member_id}
    assert codes(await call(COMMIT, commit("h", read, {0: 1}, **member))) == [ErrorCode.none]
    stale = member | {"generation_id_or_member_epoch": joined.generation_id + 1}
    assert codes(await call(COMMIT, commit("h", read, {0: 1}, **stale))) == [ErrorCode.illegal_generation]
    assert codes(await call(COMMIT, commit("h", read, {0: 1}))) == [ErrorCode.unknown_member_id]


async def test_offsets_are_deleted(call: ApiCaller, topics: dict[str, UUID]) -> None:
    await call(COMMIT, commit("g", {"topic_id": topics["read"]}, {0: 5, 1: 6}))
    wanted = [
        part(
            "OffsetDeleteRequestTopic",
            name=name,
            partitions=[part("OffsetDeleteRequestPartition", partition_index=index) for index in indexes],
        )
        for name, indexes in (("read", (0, 8)), ("nowhere", (0,)))
    ]
    response = await call(DELETE_OFFSETS, part("OffsetDeleteRequest", group_id="g", topics=wanted))
    unknown = ErrorCode.unknown_topic_or_partition
    assert response.error_code is ErrorCode.none
    assert codes(response) == [ErrorCode.none, unknown, unknown]
    groups = [part("OffsetFetchRequestGroup", group_id="g", topics=None)]
    [group] = (await call(FETCH, part("OffsetFetchRequest", groups=groups))).groups
    assert [each.partition_index for each in group.topics[0].partitions] == [1]
    response = await call(DELETE_OFFSETS, part("OffsetDeleteRequest", group_id="nobody", topics=wanted))
    assert (response.error_code, response.topics) == (ErrorCode.group_id_not_found, ())


# ── groups ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_groups_are_listed_and_deleted(call: ApiCaller, topics: dict[str, UUID]) -> None:
    await call(COMMIT, commit("empty", {"topic_id": topics["read"]}, {0: 5}))
    await settle(call, "live")

    async def listed(**filters: tuple[str, ...]) -> dict[str, tuple[str, str]]:
        responses = [await each(LIST, part("ListGroupsRequest", **filters)) for each in call.everywhere()]
        assert {response.error_code for response in responses} == {ErrorCode.none}
        groups = [each for response in responses for each in response.groups]
        return {each.group_id: (each.group_state, each.group_type) for each in groups}

    assert await listed() == {"empty": ("Empty", "classic"), "live": ("Stable", "classic")}
    assert (await listed(states_filter=("stable",))).keys() == {"live"}
    assert await listed(types_filter=("consumer",)) == {}

    response = await call(DELETE_GROUPS, part("DeleteGroupsRequest", groups_names=("empty", "live", "nobody", "empty")))
    assert {each.group_id: each.error_code for each in response.results} == {
        "empty": ErrorCode.none,
        "live": ErrorCode.non_empty_group,
        "nobody": ErrorCode.group_id_not_found,
    }
    assert (await listed()).keys() == {"live"}


async def test_a_group_is_listed_by_its_coordinator_alone(call: ApiCaller, topics: dict[str, UUID]) -> None:
    groups = [f"group-{number}" for number in range(20)]
    for group in groups:
        await call(COMMIT, commit(group, {"topic_id": topics["read"]}, {0: 5}))
    for at_agent in call.everywhere():
        listed = {each.group_id for each in (await at_agent(LIST, part("ListGroupsRequest"))).groups}
        coordinators = {group: coordinator_of(group, call.agent.view) for group in groups}
        assert listed == {
            g for g, agent in coordinators.items() if agent and agent.node_id == at_agent.agent.session.node_id
        }
        assert listed


async def test_a_group_that_does_not_exist(call: ApiCaller) -> None:
    request = part("DescribeGroupsRequest", groups=("nobody",), include_authorized_operations=False)
    [old] = (await call(DESCRIBE, request, version=5)).groups
    assert (old.error_code, old.group_state) == (ErrorCode.none, "Dead")
    [new] = (await call(DESCRIBE, request, version=6)).groups
    assert (new.error_code, new.group_state) == (ErrorCode.group_id_not_found, "Dead")
    assert new.error_message == "Group nobody not found."
