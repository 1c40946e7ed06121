"""The control plane in another process, behind the same interface."""

from typing import Any

import msgspec

from braidlog.control.calls import CALLS
from braidlog.control.interface import (
    AgentHeartbeat,
    AgentLeave,
    AlterConfigs,
    BoundsAnswer,
    BoundsRequest,
    CommitObject,
    CommitOffsets,
    CommitOffsetsAnswer,
    CreatePartitions,
    CreateTopics,
    DeletedRecords,
    DeleteGroups,
    DeleteOffsets,
    DeleteOffsetsAnswer,
    DeleteRecords,
    DeleteTopics,
    DescribeGroups,
    Done,
    FeedPage,
    FeedRequest,
    FetchOffsets,
    FetchOffsetsAnswer,
    FindExtents,
    FindTimestamp,
    FoundExtents,
    GroupDescriptions,
    GroupHeartbeat,
    GroupListings,
    GroupOutcomes,
    HeartbeatAnswer,
    InitProducerId,
    JoinAnswer,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    ListGroups,
    Message,
    ObjectVerdict,
    Outcome,
    ProducerIdentity,
    RegisterAgent,
    Registered,
    Snapshot,
    SnapshotRequest,
    SyncAnswer,
    SyncGroup,
    TopicOutcomes,
)
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, Remedy
from braidlog.runtime.rpc import RpcClient

_encode = msgspec.msgpack.Encoder().encode


class BadAnswer(BraidError):
    """The control plane answered with something else than this release expects."""

    remedy = Remedy.CHECK_OUTCOME


class RemoteControl:
    """Implements `ControlPlane` over one connection to `address` (see `runtime.rpc.parse_address`)."""

    def __init__(self, address: str, clock: Clock, entropy: Entropy) -> None:
        self._client = RpcClient(address, clock, entropy)

    async def close(self) -> None:
        await self._client.close()

    async def _call(self, name: str, request: Message, timeout_s: float | None) -> Any:
        body = await self._client.call(name, _encode(request), timeout_s)
        try:
            return CALLS[name].answer.decode(body)
        except msgspec.MsgspecError as error:
            raise BadAnswer(f"{name}: {error}", help="Do both sides run the same release?") from error

    async def snapshot(self, request: SnapshotRequest, *, timeout_s: float | None = None) -> Snapshot:
        answer: Snapshot = await self._call("snapshot", request, timeout_s)
        return answer

    async def read_feed(self, request: FeedRequest, *, timeout_s: float | None = None) -> FeedPage:
        answer: FeedPage = await self._call("read_feed", request, timeout_s)
        return answer

    async def register_agent(self, request: RegisterAgent, *, timeout_s: float | None = None) -> Registered:
        answer: Registered = await self._call("register_agent", request, timeout_s)
        return answer

    async def heartbeat_agent(self, request: AgentHeartbeat, *, timeout_s: float | None = None) -> HeartbeatAnswer:
        answer: HeartbeatAnswer = await self._call("heartbeat_agent", request, timeout_s)
        return answer

    async def leave_agent(self, request: AgentLeave, *, timeout_s: float | None = None) -> Done:
        answer: Done = await self._call("leave_agent", request, timeout_s)
        return answer

    async def create_topics(self, request: CreateTopics, *, timeout_s: float | None = None) -> TopicOutcomes:
        answer: TopicOutcomes = await self._call("create_topics", request, timeout_s)
        return answer

    async def delete_topics(self, request: DeleteTopics, *, timeout_s: float | None = None) -> TopicOutcomes:
        answer: TopicOutcomes = await self._call("delete_topics", request, timeout_s)
        return answer

    async def create_partitions(self, request: CreatePartitions, *, timeout_s: float | None = None) -> TopicOutcomes:
        answer: TopicOutcomes = await self._call("create_partitions", request, timeout_s)
        return answer

    async def alter_configs(self, request: AlterConfigs, *, timeout_s: float | None = None) -> Outcome:
        answer: Outcome = await self._call("alter_configs", request, timeout_s)
        return answer

    async def commit_object(self, request: CommitObject, *, timeout_s: float | None = None) -> ObjectVerdict:
        answer: ObjectVerdict = await self._call("commit_object", request, timeout_s)
        return answer

    async def find_extents(self, request: FindExtents, *, timeout_s: float | None = None) -> FoundExtents:
        answer: FoundExtents = await self._call("find_extents", request, timeout_s)
        return answer

    async def find_timestamp(self, request: FindTimestamp, *, timeout_s: float | None = None) -> FoundExtents:
        answer: FoundExtents = await self._call("find_timestamp", request, timeout_s)
        return answer

    async def current_bounds(self, request: BoundsRequest, *, timeout_s: float | None = None) -> BoundsAnswer:
        answer: BoundsAnswer = await self._call("current_bounds", request, timeout_s)
        return answer

    async def delete_records(self, request: DeleteRecords, *, timeout_s: float | None = None) -> DeletedRecords:
        answer: DeletedRecords = await self._call("delete_records", request, timeout_s)
        return answer

    async def init_producer_id(self, request: InitProducerId, *, timeout_s: float | None = None) -> ProducerIdentity:
        answer: ProducerIdentity = await self._call("init_producer_id", request, timeout_s)
        return answer

    async def join_group(self, request: JoinGroup, *, timeout_s: float | None = None) -> JoinAnswer:
        answer: JoinAnswer = await self._call("join_group", request, timeout_s)
        return answer

    async def sync_group(self, request: SyncGroup, *, timeout_s: float | None = None) -> SyncAnswer:
        answer: SyncAnswer = await self._call("sync_group", request, timeout_s)
        return answer

    async def heartbeat_group(self, request: GroupHeartbeat, *, timeout_s: float | None = None) -> Outcome:
        answer: Outcome = await self._call("heartbeat_group", request, timeout_s)
        return answer

    async def leave_group(self, request: LeaveGroup, *, timeout_s: float | None = None) -> LeaveAnswer:
        answer: LeaveAnswer = await self._call("leave_group", request, timeout_s)
        return answer

    async def commit_offsets(self, request: CommitOffsets, *, timeout_s: float | None = None) -> CommitOffsetsAnswer:
        answer: CommitOffsetsAnswer = await self._call("commit_offsets", request, timeout_s)
        return answer

    async def fetch_offsets(self, request: FetchOffsets, *, timeout_s: float | None = None) -> FetchOffsetsAnswer:
        answer: FetchOffsetsAnswer = await self._call("fetch_offsets", request, timeout_s)
        return answer

    async def delete_offsets(self, request: DeleteOffsets, *, timeout_s: float | None = None) -> DeleteOffsetsAnswer:
        answer: DeleteOffsetsAnswer = await self._call("delete_offsets", request, timeout_s)
        return answer

    async def list_groups(self, request: ListGroups, *, timeout_s: float | None = None) -> GroupListings:
        answer: GroupListings = await self._call("list_groups", request, timeout_s)
        return answer

    async def describe_groups(self, request: DescribeGroups, *, timeout_s: float | None = None) -> GroupDescriptions:
        answer: GroupDescriptions = await self._call("describe_groups", request, timeout_s)
        return answer

    async def delete_groups(self, request: DeleteGroups, *, timeout_s: float | None = None) -> GroupOutcomes:
        answer: GroupOutcomes = await self._call("delete_groups", request, timeout_s)
        return answer
