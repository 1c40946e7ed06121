"""Transactions: what belongs to them, how they end, and what aborted ones have left behind."""

from typing import Protocol

import msgspec

from braidlog.control.interface.base import Message
from braidlog.control.interface.catalog import Outcome
from braidlog.control.interface.feed import PartitionBounds
from braidlog.control.interface.groups import CommitOffsets, CommitOffsetsAnswer
from braidlog.control.interface.producers import ProducerIdentity


class TransactionOwner(Message, frozen=True):
    """Who speaks: a transactional id, and the producer that it was last given."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class AddPartitionsToTransaction(Message, frozen=True):
    owner: TransactionOwner
    partitions: list[tuple[bytes, int]]
    """Topic id and partition index."""
    verify_only: bool = False
    """Only ask whether they belong to the ongoing transaction."""


class AddedPartitions(Message, frozen=True):
    """`error_code` concerns all of them; otherwise one code per partition, in order."""

    error_code: int
    error_codes: list[int] = msgspec.field(default_factory=list)


class AddGroupToTransaction(Message, frozen=True):
    owner: TransactionOwner
    group_id: str


class CommitTransactionOffsets(Message, frozen=True):
    """Offsets that become visible when the transaction is committed. `adds_group`: its group need not be added."""

    owner: TransactionOwner
    commit: CommitOffsets
    adds_group: bool = False


class EndTransaction(Message, frozen=True):
    """`bumps_epoch`: the producer gets a new epoch with every end (transactions of version 2)."""

    owner: TransactionOwner
    commit: bool
    bumps_epoch: bool = False


class FindAborted(Message, frozen=True):
    """Aborted transactions with records in [start_offset, end_offset) of a partition."""

    partition_id: int
    start_offset: int
    end_offset: int


class FoundAborted(Message, frozen=True):
    bounds: PartitionBounds
    """Of the same moment: what lies below its start is no longer known here."""
    aborted: list[tuple[int, int]]
    """Producer id and first offset."""
    known: bool = True
    """False: there is no such partition (any more)."""
    marker_offsets: list[int] = msgspec.field(default_factory=list)
    """Of each, in the same order: its records lie before it."""


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
    """Only ongoing transactions that have lasted so long; -1: any."""
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
    """-1: it has no open transaction in the partition."""


class PartitionProducers(Message, frozen=True):
    partition_id: int
    producers: list[ActiveProducer]


class ProducerDescriptions(Message, frozen=True):
    """In the order asked for; a partition that is gone is missing."""

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
