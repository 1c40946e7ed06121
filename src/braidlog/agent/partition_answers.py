"""What a fetch answers for one partition: its records, where they can be had, or what is the matter with it."""

from typing import TYPE_CHECKING, NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from braidlog.agent.placement import reader_for
from braidlog.agent.reading import OFFSET_MAX, DamagedExtent, ExtentGone, Slice
from braidlog.agent.view import PartitionView, TopicView
from braidlog.control.interface import FindAborted, PartitionBounds
from braidlog.objects.store import StoreError
from braidlog.runtime.errors import BraidError
from braidlog.wire.fetch import AbortedTransaction, FetchedPartition, FetchPartition

if TYPE_CHECKING:
    from braidlog.agent.agent import Agent

log = structlog.get_logger(__name__)


class PartitionRead(NamedTuple):
    """What is yet to be read of a partition.

    What was stable when the read began stays so: all of its transactions were decided, so that those of them that were
    aborted can be told afterwards."""

    partition: PartitionView
    wanted: FetchPartition
    bytes_max: int
    end_offset: int


class PartitionAnswers:
    """For the partitions of one fetch request."""

    def __init__(self, agent: "Agent", *, committed_only: bool, by_id: bool, rack_id: str) -> None:
        self._agent = agent
        self._committed_only = committed_only
        self._by_id = by_id
        self._rack_id = rack_id
        self.confirmed: dict[int, PartitionBounds] = {}
        """Bounds that the control plane told, where the view seemed to be behind the consumer."""

    def _readable_end(self, partition: PartitionView) -> int:
        return partition.last_stable_offset if self._committed_only else partition.high_watermark

    def available_bytes(self, wanted: FetchPartition, partition: PartitionView) -> int:
        """What can be read now: roughly, and where it is not known as many as are wanted."""
        end_offset = self._readable_end(partition)
        if wanted.fetch_offset >= end_offset:
            return 0
        tail = partition.tail_from(wanted.fetch_offset, wanted.bytes_max)
        if tail is None:
            return wanted.bytes_max
        return min(sum(extent.length for extent, _ in tail if extent.base_offset < end_offset), wanted.bytes_max)

    def range_error(self, wanted: FetchPartition, partition: PartitionView) -> int | None:
        """What is wrong with where a consumer wants to read."""
        if wanted.current_leader_epoch > 0:
            return ErrorCode.unknown_leader_epoch
        if wanted.fetch_offset < partition.log_start_offset:
            return ErrorCode.offset_out_of_range
        if wanted.fetch_offset > partition.high_watermark:
            confirmed = self.confirmed.get(partition.partition_id)
            if confirmed is not None and wanted.fetch_offset > confirmed.high_watermark:
                return ErrorCode.offset_out_of_range
        return None

    def nothing_new(self, partition: PartitionView, wanted: FetchPartition) -> FetchedPartition:
        """The answer where nothing is the matter and there is nothing to read."""
        return self._answer(partition, wanted, Slice([], 0, 0), self.preferred(partition))

    def preferred(self, partition: PartitionView) -> int:
        """The agent that the consumer should read this from instead; -1 where this one will do."""
        return reader_for(self._agent, partition, self._rack_id) if self._rack_id else -1

    def begin(
        self, topic: TopicView | None, wanted: FetchPartition, bytes_max: int
    ) -> FetchedPartition | PartitionRead:
        """The answer, or the read that will give it where something has to be asked for."""
        index = wanted.partition_index
        if topic is None:
            unknown = ErrorCode.unknown_topic_id if self._by_id else ErrorCode.unknown_topic_or_partition
            return FetchedPartition(index, unknown)
        if not 0 <= index < len(topic.partitions):
            return FetchedPartition(index, ErrorCode.unknown_topic_or_partition)
        partition = topic.partitions[index]
        error = self.range_error(wanted, partition)
        if error is not None:
            return FetchedPartition(index, error, log_start_offset=partition.log_start_offset)
        preferred = self.preferred(partition)
        end_offset = self._readable_end(partition)
        if preferred != -1 or wanted.fetch_offset >= end_offset or bytes_max <= 0:
            return self._answer(partition, wanted, Slice([], 0, wanted.fetch_offset), preferred)
        read = PartitionRead(partition, wanted, bytes_max, end_offset)
        return self._read_at_hand(read) or read

    def _read_at_hand(self, read: PartitionRead) -> FetchedPartition | None:
        partition, wanted, bytes_max, end_offset = read
        limit_offset = end_offset if self._committed_only else OFFSET_MAX
        try:
            found = self._agent.reader.at_hand(partition, wanted.fetch_offset, bytes_max, limit_offset)
        except DamagedExtent as problem:
            return FetchedPartition(wanted.partition_index, self._read_error(problem, partition, wanted.fetch_offset))
        if found is None:
            return None
        if not self._committed_only:
            return self._answer(partition, wanted, found)
        aborted = partition.aborted_within(wanted.fetch_offset, found.next_offset)
        return None if aborted is None else self._answer_committed(read, found, aborted)

    async def read(self, read: PartitionRead) -> FetchedPartition:
        """The answer, once what it takes has come from the store or the control plane."""
        partition, wanted, bytes_max, stable_offset = read
        offset, index = wanted.fetch_offset, wanted.partition_index
        try:
            if not self._committed_only:
                return self._answer(partition, wanted, await self._agent.reader.read(partition, offset, bytes_max))
            found = await self._agent.reader.read(partition, offset, bytes_max, stable_offset)
            aborted = await self._aborted_within(partition, offset, found.next_offset)
        except (StoreError, BraidError, DamagedExtent, ExtentGone) as problem:
            return FetchedPartition(index, self._read_error(problem, partition, offset))
        if aborted is None:
            return FetchedPartition(index, ErrorCode.offset_out_of_range, log_start_offset=partition.log_start_offset)
        return self._answer_committed(read, found, aborted)

    def _answer_committed(self, read: PartitionRead, found: Slice, aborted: list[tuple[int, int]]) -> FetchedPartition:
        return self._answer(read.partition, read.wanted, found)._replace(
            last_stable_offset=read.end_offset,
            aborted_transactions=[AbortedTransaction(producer_id, offset) for producer_id, offset in aborted],
        )

    async def _aborted_within(
        self, partition: PartitionView, start_offset: int, end_offset: int
    ) -> list[tuple[int, int]] | None:
        """Producer and first offset of aborted transactions with records in the range; None where the range is no
        longer there."""
        known = partition.aborted_within(start_offset, end_offset)
        if known is None:
            request = FindAborted(partition.partition_id, start_offset, end_offset)
            found = await self._agent.control.find_aborted(request, timeout_s=5.0)
            if not found.known or found.bounds.log_start_offset > start_offset:
                return None
            known = found.aborted
        return known

    def _answer(
        self, partition: PartitionView, wanted: FetchPartition, found: Slice, preferred: int = -1
    ) -> FetchedPartition:
        end_offset = max(partition.high_watermark, found.next_offset) if found.buffers else partition.high_watermark
        return FetchedPartition(
            wanted.partition_index,
            ErrorCode.none,
            high_watermark=end_offset,
            last_stable_offset=end_offset if partition.first_unstable_offset < 0 else partition.first_unstable_offset,
            log_start_offset=partition.log_start_offset,
            aborted_transactions=[] if self._committed_only else None,
            preferred_read_replica=preferred,
            records=found.buffers,
        )

    def _read_error(self, problem: Exception, partition: PartitionView, offset: int) -> int:
        log.warning("read failed", partition_id=partition.partition_id, offset=offset, error=str(problem))
        if isinstance(problem, DamagedExtent):
            return ErrorCode.corrupt_message
        # Retriable, so that the consumer stays where it is and asks again.
        return ErrorCode.kafka_storage_error
