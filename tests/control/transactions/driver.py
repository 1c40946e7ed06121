"""A transactional producer as the control plane sees it: identities, partitions, batches, offsets, ends."""

from dataclasses import dataclass, field

from tests.control.driver import batch, commit

from braidlog.control.interface import (
    AddGroupToTransaction,
    AddPartitionsToTransaction,
    BoundsRequest,
    CommitOffsets,
    CommitTransactionOffsets,
    ControlPlane,
    EndTransaction,
    FetchOffsets,
    FindAborted,
    FindExtents,
    InitProducerId,
    OffsetToCommit,
    PartitionBounds,
    TopicInfo,
    TransactionOwner,
)
from braidlog.objects.layout import ADDS_PARTITION_BIT
from braidlog.records.batch import TRANSACTIONAL_BIT
from braidlog.records.marker import Marker, decode_marker

TIMEOUT_MS = 60_000


@dataclass
class TransactionalProducer:
    """Version 2 of transactions adds partitions by writing to them and gets a new epoch with every end."""

    control: ControlPlane
    name: str = "tx"
    version: int = 1
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[tuple[bytes, int], int] = field(default_factory=dict)

    @property
    def owner(self) -> TransactionOwner:
        return TransactionOwner(self.name, self.producer_id, self.epoch)

    async def init(self, *, timeout_ms: int = TIMEOUT_MS, bump: bool = False) -> int:
        identity = (self.producer_id, self.epoch) if bump else (-1, -1)
        answer = await self.control.init_producer_id(InitProducerId(self.name, timeout_ms, *identity))
        if not answer.error_code:
            self._take(answer.producer_id, answer.producer_epoch)
        return answer.error_code

    def _take(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    async def add(self, topic: TopicInfo, *partitions: int, verify_only: bool = False) -> list[int]:
        wanted = [(topic.topic_id, index) for index in partitions or (0,)]
        answer = await self.control.add_partitions_to_transaction(
            AddPartitionsToTransaction(self.owner, wanted, verify_only)
        )
        return [answer.error_code] * len(wanted) if answer.error_code else answer.error_codes

    async def write(self, topic: TopicInfo, partition: int = 0, count: int = 1) -> tuple[int, int]:
        """One batch; its error code and base offset."""
        sequence = self.sequences.get((topic.topic_id, partition), 0)
        attributes = TRANSACTIONAL_BIT | (ADDS_PARTITION_BIT if self.version >= 2 else 0)
        entry = batch(count, self.producer_id, self.epoch, sequence, attributes=attributes)
        ((code, offset, _),) = await commit(self.control, topic, [entry], partition)
        if not code:
            self.sequences[topic.topic_id, partition] = sequence + count
        return code, offset

    async def begin(self, topic: TopicInfo, *partitions: int) -> None:
        """Add the partitions where that is needed, and write one record to each."""
        for partition in partitions or (0,):
            if self.version < 2:
                assert await self.add(topic, partition) == [0]
            assert (await self.write(topic, partition))[0] == 0

    async def end(self, *, commit: bool) -> int:
        answer = await self.control.end_transaction(EndTransaction(self.owner, commit, self.version >= 2))
        if not answer.error_code:
            self._take(answer.producer_id, answer.producer_epoch)
        return answer.error_code

    async def add_group(self, group_id: str) -> int:
        return (await self.control.add_group_to_transaction(AddGroupToTransaction(self.owner, group_id))).error_code

    async def commit_offset(
        self, group_id: str, topic: TopicInfo, offset: int, *, member_id: str = "", generation_id: int = -1
    ) -> int:
        offsets = [OffsetToCommit(topic.topic_id, 0, offset, -1, "")]
        request = CommitTransactionOffsets(
            self.owner, CommitOffsets(group_id, generation_id, member_id, None, offsets), self.version >= 2
        )
        return (await self.control.commit_transaction_offsets(request)).error_codes[0]


async def bounds(control: ControlPlane, topic: TopicInfo, partition: int = 0) -> PartitionBounds:
    answer = await control.current_bounds(BoundsRequest([topic.partition_ids[partition]]))
    return answer.bounds[0]


async def stable_offset(control: ControlPlane, topic: TopicInfo, partition: int = 0) -> int:
    now = await bounds(control, topic, partition)
    return now.high_watermark if now.first_unstable_offset < 0 else now.first_unstable_offset


async def aborted(
    control: ControlPlane, topic: TopicInfo, partition: int = 0, start: int = 0, end: int = 1 << 40
) -> list[tuple[int, int]]:
    return (await control.find_aborted(FindAborted(topic.partition_ids[partition], start, end))).aborted


async def markers(control: ControlPlane, topic: TopicInfo, partition: int = 0) -> list[tuple[int, Marker]]:
    """All that are in the partition, with their offsets."""
    found = await control.find_extents(FindExtents(topic.partition_ids[partition], 0, 1 << 40, 10_000))
    result = []
    for extent in found.extents:
        if extent.inline is not None:
            marker = decode_marker(memoryview(extent.inline))
            assert marker is not None
            result.append((extent.base_offset, marker))
    return result


async def committed_offset(
    control: ControlPlane, group_id: str, topic: TopicInfo, *, stable: bool = False
) -> tuple[int, int]:
    """Its error code and the offset."""
    answer = await control.fetch_offsets(FetchOffsets(group_id, [(topic.topic_id, 0)], stable))
    return answer.offsets[0].error_code, answer.offsets[0].offset
