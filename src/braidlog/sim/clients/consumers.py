"""Simulated consumers: one that reads on its own, and members of a classic group."""

import asyncio
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any

import msgspec
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from braidlog.records.batch import scan_batches
from braidlog.records.record import decode_batch
from braidlog.sim.clients.producers import text_of
from braidlog.sim.clients.session import ClientSession
from braidlog.sim.clients.wire_client import Disconnected, WireClient, request_types
from braidlog.sim.history import Assigned, CommitOffset, FetchOffset, ListOffset, Poll

FETCH, FETCH_VERSION = 1, 12
LIST_OFFSETS, LIST_OFFSETS_VERSION = 2, 7
OFFSET_COMMIT, OFFSET_COMMIT_VERSION = 8, 8
OFFSET_FETCH, OFFSET_FETCH_VERSION = 9, 7
JOIN_GROUP, JOIN_GROUP_VERSION = 11, 7
HEARTBEAT, HEARTBEAT_VERSION = 12, 4
LEAVE_GROUP, LEAVE_GROUP_VERSION = 13, 4
SYNC_GROUP, SYNC_GROUP_VERSION = 14, 5

BYTES_MAX = 1 << 20
SESSION_TIMEOUT_S = 10.0
REBALANCE_TIMEOUT_S = 15.0

LIST_WHICH = {"earliest": -2, "latest": -1}


class Rejoin(Exception):
    """The member must join its group again."""


async def list_offset(session: ClientSession, topic: str, partition: int, which: Any) -> int:
    """Ask any agent for the first or the last offset, and record the answer."""
    invoke_s = session.now_s
    types = request_types(LIST_OFFSETS, LIST_OFFSETS_VERSION)
    connection = await session.any_connection()
    answer = await connection.call(
        LIST_OFFSETS,
        LIST_OFFSETS_VERSION,
        types.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=(
                types.ListOffsetsTopic(
                    name=topic,
                    partitions=(
                        types.ListOffsetsPartition(
                            partition_index=partition, current_leader_epoch=-1, timestamp=LIST_WHICH[which]
                        ),
                    ),
                ),
            ),
        ),
    )
    found = answer.topics[0].partitions[0]
    if found.error_code != ErrorCode.none:
        raise Disconnected(f"list offsets: {found.error_code.name}")
    session.history.record(
        ListOffset(
            client=session.name,
            invoke_s=invoke_s,
            complete_s=session.now_s,
            topic=topic,
            partition=partition,
            which=which,
            offset=found.offset,
        )
    )
    return int(found.offset)


class Fetched(msgspec.Struct):
    records: list[tuple[int, str]]
    next_offset: int
    log_start_offset: int
    high_watermark: int
    is_out_of_range: bool = False
    markers: list[int] = msgspec.field(default_factory=list)
    """Offsets of transaction markers."""


def fetch_request(topic: str, partition: int, offset: int, *, wait_s: float, isolation_level: int = 0) -> Any:
    """Build a fetch of one partition, outside of any fetch session."""
    types = request_types(FETCH, FETCH_VERSION)
    return types.FetchRequest(
        replica_id=-1,
        max_wait=i32Timedelta.parse(timedelta(seconds=wait_s)),
        min_bytes=1,
        max_bytes=BYTES_MAX,
        isolation_level=isolation_level,
        session_id=0,
        session_epoch=-1,
        topics=(
            types.FetchTopic(
                topic=topic,
                partitions=(
                    types.FetchPartition(
                        partition=partition,
                        current_leader_epoch=-1,
                        fetch_offset=offset,
                        last_fetched_epoch=-1,
                        log_start_offset=-1,
                        partition_max_bytes=BYTES_MAX,
                    ),
                ),
            ),
        ),
        forgotten_topics_data=(),
        rack_id="",
    )


async def fetch(
    session: ClientSession, connection: WireClient, topic: str, partition: int, offset: int, *, wait_s: float = 0.5
) -> Fetched:
    """Fetch one partition.

    Gives the records from `offset` on, with their values as text.
    """
    answer = await connection.call(FETCH, FETCH_VERSION, fetch_request(topic, partition, offset, wait_s=wait_s))
    found = answer.responses[0].partitions[0]
    if found.error_code == ErrorCode.offset_out_of_range:
        return Fetched([], offset, found.log_start_offset, -1, is_out_of_range=True)
    if found.error_code != ErrorCode.none:
        session.forget(topic, partition)
        raise Disconnected(f"fetch: {found.error_code.name}")
    data = memoryview(found.records or b"")
    records: list[tuple[int, str]] = []
    markers: list[int] = []
    next_offset = offset
    for position, header in scan_batches(data):
        next_offset = max(next_offset, header.end_offset)
        if header.is_control:
            markers.append(header.base_offset)
            continue
        batch = decode_batch(data[position : position + header.total_bytes], bytes_max=BYTES_MAX)
        records.extend((record.offset, text_of(record)) for record in batch if record.offset >= offset)
    return Fetched(records, next_offset, found.log_start_offset, found.high_watermark, markers=markers)


class Follower(ABC):
    """Follows some partitions from their start, without a group."""

    def __init__(self, session: ClientSession, targets: list[tuple[str, int]]) -> None:
        self._session = session
        self._targets = targets
        self.stopping = False

    async def run(self) -> None:
        await asyncio.gather(*(self._follow(topic, partition) for topic, partition in self._targets))
        self._session.close()

    @abstractmethod
    async def _follow(self, topic: str, partition: int) -> None:
        """Read and record until `stopping`."""


class SimReader(Follower):
    """Reads partitions, and now and then asks where they end."""

    async def _follow(self, topic: str, partition: int) -> None:
        session = self._session
        offset, is_reset = 0, True
        while not self.stopping:
            try:
                if session.entropy.below(10) == 0:
                    await list_offset(session, topic, partition, "latest")
                invoke_s = session.now_s
                connection = await session.leader(topic, partition)
                found = await fetch(session, connection, topic, partition, offset)
            except (Disconnected, TimeoutError):
                session.forget(topic, partition)
                await session.pause()
                continue
            if found.is_out_of_range:
                offset, is_reset = await self._earliest(topic, partition), True
                continue
            session.history.record(
                Poll(
                    client=session.name,
                    invoke_s=invoke_s,
                    complete_s=session.now_s,
                    topic=topic,
                    partition=partition,
                    fetch_offset=offset,
                    records=found.records,
                    log_start_offset=found.log_start_offset,
                    is_reset=is_reset,
                )
            )
            offset, is_reset = found.next_offset, False

    async def _earliest(self, topic: str, partition: int) -> int:
        return int(await self._session.retry(lambda: list_offset(self._session, topic, partition, "earliest")))


class GroupMember:
    """A member of a consumer group.

    It joins, reads its partitions, commits and leaves.
    """

    commit_version = OFFSET_COMMIT_VERSION

    def __init__(self, session: ClientSession, group: str, topic: str, partition_count: int) -> None:
        self._session = session
        self._group = group
        self._topic = topic
        self._partition_count = partition_count
        self._member_id = ""
        self._generation = -1
        self.stopping = False

    async def run(self) -> None:
        session = self._session
        while not self.stopping:
            try:
                coordinator = await session.coordinator(self._group)
                partitions = await self._join(coordinator)
                await self._work(coordinator, partitions)
            except Rejoin:
                continue
            except (Disconnected, TimeoutError):
                await session.pause()
        await self._leave()
        session.close()

    async def _call(self, connection: WireClient, key: int, version: int, request: Any, timeout_s: float = 15.0) -> Any:
        """Make a group call.

        Raises `Rejoin` if the membership is lost, and `Disconnected` for other errors.
        """
        answer = await connection.call(key, version, request, timeout_s=timeout_s)
        code: ErrorCode = getattr(answer, "error_code", ErrorCode.none)
        if code == ErrorCode.unknown_member_id:
            self._forget_id()
            raise Rejoin
        if code in {ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress}:
            raise Rejoin
        if code not in {ErrorCode.none, ErrorCode.member_id_required}:
            raise Disconnected(f"group: {code.name}")
        return answer

    async def _join(self, coordinator: WireClient) -> list[int]:
        types = request_types(JOIN_GROUP, JOIN_GROUP_VERSION)
        for _ in range(2):
            answer = await self._call(
                coordinator,
                JOIN_GROUP,
                JOIN_GROUP_VERSION,
                types.JoinGroupRequest(
                    group_id=self._group,
                    session_timeout=i32Timedelta.parse(timedelta(seconds=SESSION_TIMEOUT_S)),
                    rebalance_timeout=i32Timedelta.parse(timedelta(seconds=REBALANCE_TIMEOUT_S)),
                    member_id=self._member_id,
                    group_instance_id=None,
                    protocol_type="consumer",
                    protocols=(types.JoinGroupRequestProtocol(name="even", metadata=b""),),
                ),
                timeout_s=REBALANCE_TIMEOUT_S + 10,
            )
            self._member_id = answer.member_id
            if answer.error_code == ErrorCode.none:
                break
        else:
            raise Disconnected("the group does not let this member in")
        self._generation = answer.generation_id
        members = sorted(member.member_id for member in answer.members)
        return await self._sync(coordinator, members if answer.leader == self._member_id else [])

    async def _sync(self, coordinator: WireClient, members: list[str]) -> list[int]:
        types = request_types(SYNC_GROUP, SYNC_GROUP_VERSION)
        shares: dict[str, list[int]] = {member: [] for member in members}
        if members:
            for partition in range(self._partition_count):
                shares[members[partition % len(members)]].append(partition)
        answer = await self._call(
            coordinator,
            SYNC_GROUP,
            SYNC_GROUP_VERSION,
            types.SyncGroupRequest(
                group_id=self._group,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocol_name="even",
                assignments=tuple(
                    types.SyncGroupRequestAssignment(member_id=member, assignment=msgspec.json.encode(share))
                    for member, share in shares.items()
                ),
            ),
            timeout_s=REBALANCE_TIMEOUT_S + 10,
        )
        partitions = msgspec.json.decode(answer.assignment, type=list[int]) if answer.assignment else []
        now_s = self._session.now_s
        self._session.history.record(
            Assigned(
                client=self._member_id,
                invoke_s=now_s,
                complete_s=now_s,
                group=self._group,
                generation=self._generation,
                partitions=[(self._topic, partition) for partition in partitions],
            )
        )
        return partitions

    async def _work(self, coordinator: WireClient, partitions: list[int]) -> None:
        """Read and commit until the group changes."""
        session = self._session
        positions = {partition: await self._committed(coordinator, partition) for partition in partitions}
        reset = dict.fromkeys(partitions, True)
        heartbeat_due_s = 0.0
        while not self.stopping:
            if session.now_s >= heartbeat_due_s:
                await self._heartbeat(coordinator)
                heartbeat_due_s = session.now_s + SESSION_TIMEOUT_S / 4
            for partition in partitions:
                invoke_s = session.now_s
                connection = await session.leader(self._topic, partition)
                found = await fetch(session, connection, self._topic, partition, positions[partition], wait_s=0.2)
                if found.is_out_of_range:
                    positions[partition], reset[partition] = found.log_start_offset, True
                    continue
                session.history.record(
                    Poll(
                        client=f"{self._member_id}@{self._generation}",
                        invoke_s=invoke_s,
                        complete_s=session.now_s,
                        topic=self._topic,
                        partition=partition,
                        fetch_offset=positions[partition],
                        records=found.records,
                        log_start_offset=found.log_start_offset,
                        is_reset=reset[partition],
                    )
                )
                reset[partition] = False
                if found.next_offset > positions[partition]:
                    positions[partition] = found.next_offset
                    await self._commit(coordinator, partition, found.next_offset)
            await session.pause(0.3)

    async def _heartbeat(self, coordinator: WireClient) -> None:
        types = request_types(HEARTBEAT, HEARTBEAT_VERSION)
        await self._call(
            coordinator,
            HEARTBEAT,
            HEARTBEAT_VERSION,
            types.HeartbeatRequest(
                group_id=self._group,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=None,
            ),
        )

    async def _committed(self, coordinator: WireClient, partition: int) -> int:
        types = request_types(OFFSET_FETCH, OFFSET_FETCH_VERSION)
        invoke_s = self._session.now_s
        answer = await self._call(
            coordinator,
            OFFSET_FETCH,
            OFFSET_FETCH_VERSION,
            types.OffsetFetchRequest(
                group_id=self._group,
                topics=(types.OffsetFetchRequestTopic(name=self._topic, partition_indexes=(partition,)),),
                require_stable=False,
            ),
        )
        found = answer.topics[0].partitions[0]
        if found.error_code != ErrorCode.none:
            raise Disconnected(f"offset fetch: {found.error_code.name}")
        self._session.history.record(
            FetchOffset(
                client=self._member_id,
                invoke_s=invoke_s,
                complete_s=self._session.now_s,
                group=self._group,
                topic=self._topic,
                partition=partition,
                offset=found.committed_offset,
            )
        )
        return max(int(found.committed_offset), 0)

    async def _commit(self, coordinator: WireClient, partition: int, offset: int) -> None:
        types = request_types(OFFSET_COMMIT, self.commit_version)
        invoke_s = self._session.now_s
        outcome: Any = "unknown"
        trouble: ErrorCode | None = None
        try:
            answer = await coordinator.call(
                OFFSET_COMMIT,
                self.commit_version,
                types.OffsetCommitRequest(
                    group_id=self._group,
                    generation_id_or_member_epoch=self._generation,
                    member_id=self._member_id,
                    group_instance_id=None,
                    topics=(
                        types.OffsetCommitRequestTopic(
                            name=self._topic,
                            partitions=(
                                types.OffsetCommitRequestPartition(
                                    partition_index=partition,
                                    committed_offset=offset,
                                    committed_leader_epoch=-1,
                                    committed_metadata="",
                                ),
                            ),
                        ),
                    ),
                ),
            )
            code: ErrorCode = answer.topics[0].partitions[0].error_code
            if code == ErrorCode.none:
                outcome = "ok"
            elif code in {ErrorCode.coordinator_not_available, ErrorCode.request_timed_out}:
                trouble = code
            else:
                outcome, trouble = "failed", code
        finally:
            self._session.history.record(
                CommitOffset(
                    client=self._member_id,
                    invoke_s=invoke_s,
                    complete_s=self._session.now_s,
                    group=self._group,
                    topic=self._topic,
                    partition=partition,
                    offset=offset,
                    outcome=outcome,
                )
            )
        if trouble is not None:
            if trouble == ErrorCode.unknown_member_id:
                self._forget_id()
            raise Rejoin

    def _forget_id(self) -> None:
        """Forget an id that the coordinator does not know, to get another one."""
        self._member_id = ""

    async def _leave(self) -> None:
        types = request_types(LEAVE_GROUP, LEAVE_GROUP_VERSION)
        try:
            coordinator = await self._session.coordinator(self._group)
            await coordinator.call(
                LEAVE_GROUP,
                LEAVE_GROUP_VERSION,
                types.LeaveGroupRequest(
                    group_id=self._group,
                    members=(types.MemberIdentity(member_id=self._member_id, group_instance_id=None),),
                ),
            )
        except (Disconnected, TimeoutError):
            return
