"""A fetch's answer for one partition: records, another agent, or an error."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from braidlog.agent.cluster.placement import reader_for
from braidlog.agent.cluster.view import ClusterView, PartitionView, TopicView
from braidlog.agent.read_path.reader import OFFSET_MAX, DamagedExtent, ExtentGone, Reader, Slice
from braidlog.control.interface import ControlPlane, FindAborted, PartitionBounds
from braidlog.objects.store import StoreError
from braidlog.records.leader_epochs import end_of_epoch
from braidlog.runtime.errors import BraidError
from braidlog.wire.fetch import AbortedTransaction, EpochEndOffset, FetchedPartition, FetchPartition

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ReadServices:
    """The services that answers for partitions need."""

    view: ClusterView
    control: ControlPlane
    reader: Reader
    zone: str
    """This agent's zone."""


def epoch_error(named_epoch: int, current: int) -> ErrorCode | None:
    """The error in the leader epoch that a client names, if there is one.

    -1 names none.
    """
    if named_epoch < 0 or named_epoch == current:
        return None
    return ErrorCode.fenced_leader_epoch if named_epoch < current else ErrorCode.unknown_leader_epoch


class Denied(Enum):
    """Stands for a topic that the client may not read."""

    TOPIC = 1


DENIED = Denied.TOPIC


class PartitionRead(NamedTuple):
    """A read of a partition that has yet to be done.

    Records that were stable when the read began stay stable: their transactions are decided, so the aborted ones can
    still be named after the read.
    """

    partition: PartitionView
    wanted: FetchPartition
    bytes_max: int
    end_offset: int
    at_least_one: bool
    """Whether the first batch may be larger than `bytes_max`."""


def records_bytes(fetched: FetchedPartition) -> int:
    return sum(map(len, fetched.records)) if fetched.records else 0


def without_records(fetched: FetchedPartition) -> FetchedPartition:
    """The same answer, as if there was nothing to read yet."""
    return fetched._replace(records=(), aborted_transactions=None if fetched.aborted_transactions is None else [])


class PartitionAnswers:
    """Answers for the partitions of one fetch request."""

    def __init__(self, reads: ReadServices, *, committed_only: bool, by_id: bool, rack_id: str) -> None:
        self._reads = reads
        self._committed_only = committed_only
        self._by_id = by_id
        self._rack_id = rack_id
        self.confirmed: dict[int, PartitionBounds] = {}
        """Bounds from the control plane, of partitions where this agent's view seemed to be behind the consumer."""

    def _readable_end(self, partition: PartitionView) -> int:
        return partition.last_stable_offset if self._committed_only else partition.high_watermark

    def available_bytes(self, wanted: FetchPartition, partition: PartitionView) -> int:
        """Roughly how many bytes can be read now.

        If that is not known, as many as are wanted.
        """
        end_offset = self._readable_end(partition)
        if wanted.fetch_offset >= end_offset:
            return 0
        tail = partition.tail_from(wanted.fetch_offset, wanted.bytes_max)
        if tail is None:
            return wanted.bytes_max
        return min(sum(extent.length for extent, _ in tail if extent.base_offset < end_offset), wanted.bytes_max)

    def first_batch_bytes_max(self, wanted: FetchPartition, partition: PartitionView) -> int:
        """How large the first batch may be.

        It is no larger than its extent, nor than its topic takes.
        """
        topic = self._reads.view.topics_by_id.get(partition.topic_id)
        topic_bytes = topic.settings.max_message_bytes if topic is not None else 0
        tail = partition.tail_from(wanted.fetch_offset, 1)
        return min(topic_bytes, tail[0][0].length) if tail else topic_bytes

    def range_error(self, wanted: FetchPartition, partition: PartitionView) -> int | None:
        """The error in the offset that a consumer wants to read from, if there is one."""
        error = epoch_error(wanted.current_leader_epoch, partition.leader_epoch)
        if error is not None:
            return error
        if wanted.fetch_offset < partition.log_start_offset:
            return ErrorCode.offset_out_of_range
        if wanted.fetch_offset > partition.high_watermark:
            confirmed = self.confirmed.get(partition.partition_id)
            if confirmed is not None and wanted.fetch_offset > confirmed.high_watermark:
                return ErrorCode.offset_out_of_range
        return None

    @staticmethod
    def fits_epochs(wanted: FetchPartition, partition: PartitionView) -> bool:
        """Whether the leader epochs that a consumer names need no answer at once."""
        return wanted.last_fetched_epoch < 0 and wanted.current_leader_epoch in (-1, partition.leader_epochs[-1][0])

    def nothing_new(self, partition: PartitionView, wanted: FetchPartition) -> FetchedPartition:
        """The answer without an error and without records."""
        return self._answer(partition, wanted, Slice([], 0, 0), self.preferred(partition))

    def preferred(self, partition: PartitionView) -> int:
        """The agent that the consumer should read from instead; -1 if this one will do."""
        if not self._rack_id:
            return -1
        return reader_for(self._reads.view, self._reads.zone, partition, self._rack_id)

    def begin(
        self, topic: TopicView | Denied | None, wanted: FetchPartition, bytes_max: int, *, at_least_one: bool
    ) -> FetchedPartition | PartitionRead:
        """The answer, or the read that will give it, if records are not in memory.

        The answer has at most `bytes_max` of records, or with `at_least_one` a single batch that may be larger.
        """
        index = wanted.partition_index
        if topic is None:
            unknown = ErrorCode.unknown_topic_id if self._by_id else ErrorCode.unknown_topic_or_partition
            return FetchedPartition(index, unknown)
        if isinstance(topic, Denied):
            return FetchedPartition(index, ErrorCode.topic_authorization_failed)
        if not 0 <= index < len(topic.partitions):
            return FetchedPartition(index, ErrorCode.unknown_topic_or_partition)
        partition = topic.partitions[index]
        error = self.range_error(wanted, partition)
        if error is not None:
            return FetchedPartition(index, error, log_start_offset=partition.log_start_offset)
        if wanted.last_fetched_epoch >= 0:
            epoch, end_offset = end_of_epoch(
                partition.leader_epochs, wanted.last_fetched_epoch, partition.high_watermark
            )
            if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
                answer = self._answer(partition, wanted, Slice([], 0, wanted.fetch_offset))
                return answer._replace(diverging_epoch=EpochEndOffset(epoch, end_offset))
        preferred = self.preferred(partition)
        end_offset = self._readable_end(partition)
        if preferred != -1 or wanted.fetch_offset >= end_offset or bytes_max <= 0:
            return self._answer(partition, wanted, Slice([], 0, wanted.fetch_offset), preferred)
        read = PartitionRead(partition, wanted, bytes_max, end_offset, at_least_one)
        return self._read_at_hand(read) or read

    def _read_at_hand(self, read: PartitionRead) -> FetchedPartition | None:
        partition, wanted, bytes_max, end_offset, at_least_one = read
        limit_offset = end_offset if self._committed_only else OFFSET_MAX
        found = self._reads.reader.at_hand(
            partition, wanted.fetch_offset, bytes_max, limit_offset, at_least_one=at_least_one
        )
        if found is None:
            return None
        if not self._committed_only:
            return self._answer(partition, wanted, found)
        aborted = partition.aborted_within(wanted.fetch_offset, found.next_offset)
        return None if aborted is None else self._answer_committed(read, found, aborted)

    async def read(self, read: PartitionRead) -> FetchedPartition:
        """The answer, with records and facts from the store or the control plane."""
        partition, wanted, bytes_max, stable_offset, at_least_one = read
        offset, index = wanted.fetch_offset, wanted.partition_index
        limit_offset = stable_offset if self._committed_only else OFFSET_MAX
        try:
            found = await self._reads.reader.read(partition, offset, bytes_max, limit_offset, at_least_one=at_least_one)
            if not self._committed_only:
                return self._answer(partition, wanted, found)
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
        """The producer and first offset of each aborted transaction in the range.

        Returns None if the range is no longer there.
        """
        known = partition.aborted_within(start_offset, end_offset)
        if known is None:
            request = FindAborted(partition.partition_id, start_offset, end_offset)
            found = await self._reads.control.find_aborted(request, timeout_s=5.0)
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
