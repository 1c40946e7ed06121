"""Simulated members of groups whose coordinator assigns the partitions."""

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from braidlog.sim.clients.consumers import GroupMember, Rejoin, fetch
from braidlog.sim.clients.session import ClientSession
from braidlog.sim.clients.wire_client import Disconnected, WireClient, request_types
from braidlog.sim.history import Owned, Poll

HEARTBEAT, HEARTBEAT_VERSION = 68, 1
HEARTBEAT_INTERVAL_S = 1.0
CONSUMER_SESSION_S = 6.0
"""The session timeout of the simulated control plane: a member owns nothing for longer than this after a heartbeat."""
REBALANCE_TIMEOUT_S = 15.0
NAP_S = (4.0, 7.0)
"""A member may pause for so long, as if in garbage collection, and then goes on."""

_GONE = {ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found}


class ConsumerMember(GroupMember):
    """A member of a group of the new protocol.

    As real clients do, it gives up a partition before it says so, and takes only what it is assigned.
    """

    commit_version = 9

    def __init__(self, session: ClientSession, group: str, topic: str, partition_count: int) -> None:
        super().__init__(session, group, topic, partition_count)
        self._lives = 0
        self._in_doubt = False
        """An answer was lost, so the next heartbeat must be complete."""
        self.is_calm = False
        """Whether it no longer naps and dies."""
        self._positions: dict[int, int | None] = {}
        """The position in each assigned partition; None until the member knows where to begin."""
        self._reset: dict[int, bool] = {}
        self._taken_s: dict[int, float] = {}
        self._sure_until_s = 0.0
        self._begin_a_life()

    def _begin_a_life(self) -> None:
        self._lives += 1
        self._member_id = f"{self._session.name}.{self._lives}"
        self._generation = 0

    def _forget_id(self) -> None:
        """Join again under the same id.

        Members choose their own id: a member that the coordinator does not know joins again under the same id.
        """

    async def run(self) -> None:
        session = self._session
        while not self.stopping:
            try:
                coordinator = await session.coordinator(self._group)
                await self._live(coordinator)
            except (Disconnected, TimeoutError):
                self._in_doubt = True
                await session.pause()
        self._give_up(set(self._positions))
        await self._say_goodbye()
        session.close()

    async def _live(self, coordinator: WireClient) -> None:
        session = self._session
        heartbeat_due_s = 0.0
        while not self.stopping:
            if session.now_s >= heartbeat_due_s or self._in_doubt:
                await self._report(coordinator)
                heartbeat_due_s = session.now_s + HEARTBEAT_INTERVAL_S
            for partition in list(self._positions):
                await self._read(coordinator, partition)
            if session.entropy.below(150) == 0 and not self.is_calm:
                # It dies without leaving the group, and comes back under another id.
                self._give_up(set(self._positions))
                self._begin_a_life()
                heartbeat_due_s = 0.0
            await session.pause(0.3)

    async def _report(self, coordinator: WireClient) -> None:
        """Send one heartbeat, and do what the answer says."""
        session = self._session
        types = request_types(HEARTBEAT, HEARTBEAT_VERSION)
        if self._topic not in session.topic_ids and not await session.refresh(self._topic):
            raise Disconnected(f"{self._topic} is not known yet")
        topic_id = session.topic_ids[self._topic]
        is_full = self._generation == 0 or self._in_doubt
        owned = types.TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(self._positions)))
        sent_s = session.now_s
        answer = await coordinator.call(
            HEARTBEAT,
            HEARTBEAT_VERSION,
            types.ConsumerGroupHeartbeatRequest(
                group_id=self._group,
                member_id=self._member_id,
                member_epoch=self._generation,
                rebalance_timeout=_milliseconds(REBALANCE_TIMEOUT_S if is_full else -0.001),
                subscribed_topic_names=(self._topic,) if is_full else None,
                topic_partitions=(owned,) if self._positions else (),
            ),
            timeout_s=CONSUMER_SESSION_S,
        )
        if answer.error_code in _GONE:
            self._give_up(set(self._positions))
            self._generation = 0
            return
        if answer.error_code != ErrorCode.none:
            raise Disconnected(f"heartbeat: {answer.error_code.name}")
        self._in_doubt = False
        self._generation = answer.member_epoch
        if sent_s > self._sure_until_s:
            # For a while its membership was uncertain, so its ownership ends there and begins anew.
            for partition in self._positions:
                self._record(partition)
                self._taken_s[partition] = sent_s
        self._sure_until_s = sent_s + CONSUMER_SESSION_S
        if answer.assignment is not None:
            told = {index for topic in answer.assignment.topic_partitions for index in topic.partitions}
            self._give_up(set(self._positions) - told)
            for partition in sorted(told - set(self._positions)):
                self._positions[partition], self._reset[partition] = None, True
                self._taken_s[partition] = session.now_s

    def _give_up(self, partitions: set[int]) -> None:
        for partition in sorted(partitions):
            self._record(partition)
            del self._positions[partition], self._reset[partition], self._taken_s[partition]

    def _record(self, partition: int) -> None:
        taken_s = self._taken_s[partition]
        until_s = min(self._session.now_s, self._sure_until_s)
        if until_s > taken_s:
            self._session.history.record(
                Owned(
                    client=self._member_id,
                    invoke_s=taken_s,
                    complete_s=until_s,
                    group=self._group,
                    topic=self._topic,
                    partition=partition,
                )
            )

    async def _read(self, coordinator: WireClient, partition: int) -> None:
        session = self._session
        offset = self._positions[partition]
        if offset is None:
            try:
                offset = await self._committed(coordinator, partition)
            except Rejoin:
                raise Disconnected("the group has moved on") from None
            self._positions[partition] = offset
        invoke_s = session.now_s
        connection = await session.leader(self._topic, partition)
        found = await fetch(session, connection, self._topic, partition, offset, wait_s=0.2)
        if found.is_out_of_range:
            self._positions[partition], self._reset[partition] = found.log_start_offset, True
            return
        session.history.record(
            Poll(
                client=f"{self._member_id}@{self._taken_s[partition]:.3f}",
                invoke_s=invoke_s,
                complete_s=session.now_s,
                topic=self._topic,
                partition=partition,
                fetch_offset=offset,
                records=found.records,
                log_start_offset=found.log_start_offset,
                is_reset=self._reset[partition],
            )
        )
        self._reset[partition] = False
        if found.next_offset > offset:
            self._positions[partition] = found.next_offset
            if session.entropy.below(20) == 0 and not self.is_calm:
                await session.pause(session.entropy.uniform(*NAP_S))
            try:
                await self._commit(coordinator, partition, found.next_offset)
            except Rejoin:
                self._in_doubt = True  # the next heartbeat shows what is wrong

    async def _say_goodbye(self) -> None:
        types = request_types(HEARTBEAT, HEARTBEAT_VERSION)
        try:
            coordinator = await self._session.coordinator(self._group)
            await coordinator.call(
                HEARTBEAT,
                HEARTBEAT_VERSION,
                types.ConsumerGroupHeartbeatRequest(
                    group_id=self._group, member_id=self._member_id, member_epoch=-1, topic_partitions=None
                ),
            )
        except (Disconnected, TimeoutError):
            return


def _milliseconds(seconds: float) -> Any:
    return i32Timedelta.parse(timedelta(seconds=seconds))
