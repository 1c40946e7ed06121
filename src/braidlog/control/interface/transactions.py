"""Transactions: partitions, offsets, how they end, and aborted records."""

from typing import Protocol

import msgspec

from braidlog.control.interface.base import Message
from braidlog.control.interface.catalog import Outcome
from braidlog.control.interface.feed import PartitionBounds
from braidlog.control.interface.groups import CommitOffsets, CommitOffsetsAnswer
from braidlog.control.interface.producers import ProducerIdentity


class TransactionOwner(Message, frozen=True):
    """The sender: a transactional id, and the producer that it was last given."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class AddPartitionsToTransaction(Message, frozen=True):
    owner: TransactionOwner
    partitions: list[tuple[bytes, int]]
    """Topic ids and partition indexes."""
    verify_only: bool = False
    """Only ask whether the partitions belong to the ongoing transaction."""


class AddedPartitions(Message, frozen=True):
    """The answer: `error_code` is for all partitions.

    If it is 0, each partition has a code, in order.
    """

    error_code: int
    error_codes: list[int] = msgspec.field(default_factory=list)


class AddGroupToTransaction(Message, frozen=True):
    owner: TransactionOwner
    group_id: str


class CommitTransactionOffsets(Message, frozen=True):
    """Commit offsets with a transaction.

    `adds_group`: the group need not be added before.
    """

    owner: TransactionOwner
    commit: CommitOffsets
    adds_group: bool = False


class EndTransaction(Message, frozen=True):
    """End a transaction.

    `bumps_epoch`: the producer gets a new epoch (transactions of version 2).
    """

    owner: TransactionOwner
    commit: bool
    bumps_epoch: bool = False


class AbortMarked(Message, frozen=True):
    """Abort a producer's open transaction in a partition.

    An administrator reports that it hangs.
    """

    partition_id: int
    producer_id: int
    producer_epoch: int


class FindAborted(Message, frozen=True):
    """Ask for the aborted transactions with records in a range of a partition.

    The range is [start_offset, end_offset).
    """

    partition_id: int
    start_offset: int
    end_offset: int


class FoundAborted(Message, frozen=True):
    bounds: PartitionBounds
    """The bounds at the same moment. Transactions below their start are no longer known."""
    aborted: list[tuple[int, int]]
    """The producer id and first offset of each aborted transaction."""
    known: bool = True
    """Whether the partition exists."""
    marker_offsets: list[int] = msgspec.field(default_factory=list)
    """The marker offset of each, in the same order. Its records lie before the marker."""


class DescribeTransactions(Message, frozen=True):
    transactional_ids: list[str]


class TransactionDescription(Message, frozen=True):
    error_code: int
    transactional_id: str
    state: str = ""
    timeout_ms: int = 0
    started_ms: int = 0
    """-1: no transaction is ongoing."""
    producer_id: int = -1
    producer_epoch: int = -1
    partitions: list[tuple[bytes, int]] = msgspec.field(default_factory=list)


class TransactionDescriptions(Message, frozen=True):
    transactions: list[TransactionDescription]


class ListTransactions(Message, frozen=True):
    """Empty filters match everything."""

    states: list[str] = msgspec.field(default_factory=list)
    producer_ids: list[int] = msgspec.field(default_factory=list)
    duration_ms_min: int = -1
    """Only list ongoing transactions that have lasted this long; -1: any."""
    pattern: str = ""
    """A regular expression that the whole transactional id must match."""


class TransactionListing(Message, frozen=True):
    transactional_id: str
    producer_id: int
    state: str


class TransactionListings(Message, frozen=True):
    transactions: list[TransactionListing]
    error_code: int = 0


class DescribeProducers(Message, frozen=True):
    partition_ids: list[int]


class ActiveProducer(Message, frozen=True):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_active_ms: int
    transaction_start_offset: int
    """The first offset of its open transaction in the partition; -1: there is none."""


class PartitionProducers(Message, frozen=True):
    partition_id: int
    producers: list[ActiveProducer]


class ProducerDescriptions(Message, frozen=True):
    """The producers of each partition, in the order of the request.

    Partitions that do not exist are left out.
    """

    partitions: list[PartitionProducers]


class TransactionPlane(Protocol):
    async def add_partitions_to_transaction(
        self, request: AddPartitionsToTransaction, *, timeout_s: float | None = None
    ) -> AddedPartitions: ...
    async def add_group_to_transaction(
        self, request: AddGroupToTransaction, *, timeout_s: float | None = None
    ) -> Outcome: ...
    async def commit_transaction_offsets(
        self, request: CommitTransactionOffsets, *, timeout_s: float | None = None
    ) -> CommitOffsetsAnswer: ...
    async def end_transaction(self, request: EndTransaction, *, timeout_s: float | None = None) -> ProducerIdentity: ...
    async def abort_marked(self, request: AbortMarked, *, timeout_s: float | None = None) -> Outcome: ...
    async def find_aborted(self, request: FindAborted, *, timeout_s: float | None = None) -> FoundAborted: ...
    async def describe_transactions(
        self, request: DescribeTransactions, *, timeout_s: float | None = None
    ) -> TransactionDescriptions: ...
    async def list_transactions(
        self, request: ListTransactions, *, timeout_s: float | None = None
    ) -> TransactionListings: ...
    async def describe_producers(
        self, request: DescribeProducers, *, timeout_s: float | None = None
    ) -> ProducerDescriptions: ...
