"""The control plane's calls about consumer groups and transactions."""

from braidlog.control.groups import GroupCoordinator
from braidlog.control.interface import (
    AddedPartitions,
    AddGroupToTransaction,
    AddPartitionsToTransaction,
    CommitOffsets,
    CommitOffsetsAnswer,
    CommitTransactionOffsets,
    ConsumerGroupDescriptions,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    DeleteGroups,
    DeleteOffsets,
    DeleteOffsetsAnswer,
    DescribeConsumerGroups,
    DescribeGroups,
    DescribeProducers,
    DescribeTransactions,
    EndTransaction,
    FetchOffsets,
    FetchOffsetsAnswer,
    FindAborted,
    FoundAborted,
    GroupDescriptions,
    GroupHeartbeat,
    GroupListings,
    GroupOutcomes,
    JoinAnswer,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    ListGroups,
    ListTransactions,
    Outcome,
    ProducerDescriptions,
    ProducerIdentity,
    SyncAnswer,
    SyncGroup,
    TransactionDescriptions,
    TransactionListings,
)
from braidlog.control.running import Running
from braidlog.control.transactions import Transactions


class GroupCalls(Running):
    """Of `ControlPlane`, what consumer groups and transactions are asked."""

    groups: GroupCoordinator
    transactions: Transactions

    # ── consumer groups ───────────────────────────────────────────────────────────────────────────────────────────

    async def join_group(self, request: JoinGroup, *, timeout_s: float | None = None) -> JoinAnswer:
        return await self._within(timeout_s, self.groups.join_group(request))

    async def sync_group(self, request: SyncGroup, *, timeout_s: float | None = None) -> SyncAnswer:
        return await self._within(timeout_s, self.groups.sync_group(request))

    async def heartbeat_group(self, request: GroupHeartbeat, *, timeout_s: float | None = None) -> Outcome:
        return await self._within(timeout_s, self.groups.heartbeat_group(request))

    async def leave_group(self, request: LeaveGroup, *, timeout_s: float | None = None) -> LeaveAnswer:
        return await self._within(timeout_s, self.groups.leave_group(request), change=True)

    async def commit_offsets(self, request: CommitOffsets, *, timeout_s: float | None = None) -> CommitOffsetsAnswer:
        return await self._within(timeout_s, self.groups.commit_offsets(request), change=True)

    async def fetch_offsets(self, request: FetchOffsets, *, timeout_s: float | None = None) -> FetchOffsetsAnswer:
        answer = await self._within(timeout_s, self.groups.fetch_offsets(request))
        return self.transactions.mark_unstable(request, answer) if request.require_stable else answer

    async def delete_offsets(self, request: DeleteOffsets, *, timeout_s: float | None = None) -> DeleteOffsetsAnswer:
        return await self._within(timeout_s, self.groups.delete_offsets(request), change=True)

    async def list_groups(self, request: ListGroups, *, timeout_s: float | None = None) -> GroupListings:
        return await self._within(timeout_s, self.groups.list_groups(request))

    async def describe_groups(self, request: DescribeGroups, *, timeout_s: float | None = None) -> GroupDescriptions:
        return await self._within(timeout_s, self.groups.describe_groups(request))

    async def delete_groups(self, request: DeleteGroups, *, timeout_s: float | None = None) -> GroupOutcomes:
        return await self._within(timeout_s, self.groups.delete_groups(request), change=True)

    async def heartbeat_consumer(
        self, request: ConsumerHeartbeat, *, timeout_s: float | None = None
    ) -> ConsumerHeartbeatAnswer:
        return await self._within(timeout_s, self.groups.heartbeat_consumer(request))

    async def describe_consumer_groups(
        self, request: DescribeConsumerGroups, *, timeout_s: float | None = None
    ) -> ConsumerGroupDescriptions:
        return await self._within(timeout_s, self.groups.describe_consumer_groups(request))

    # ── transactions ──────────────────────────────────────────────────────────────────────────────────────────────

    async def add_partitions_to_transaction(
        self, request: AddPartitionsToTransaction, *, timeout_s: float | None = None
    ) -> AddedPartitions:
        return await self._within(timeout_s, self.transactions.add_partitions(request), change=True)

    async def add_group_to_transaction(
        self, request: AddGroupToTransaction, *, timeout_s: float | None = None
    ) -> Outcome:
        return await self._within(timeout_s, self.transactions.add_group(request), change=True)

    async def commit_transaction_offsets(
        self, request: CommitTransactionOffsets, *, timeout_s: float | None = None
    ) -> CommitOffsetsAnswer:
        return await self._within(timeout_s, self.transactions.commit_offsets(request), change=True)

    async def end_transaction(self, request: EndTransaction, *, timeout_s: float | None = None) -> ProducerIdentity:
        return await self._within(timeout_s, self.transactions.end(request), change=True)

    async def find_aborted(self, request: FindAborted, *, timeout_s: float | None = None) -> FoundAborted:
        return await self._within(timeout_s, self.transactions.queries.find_aborted(request))

    async def describe_transactions(
        self, request: DescribeTransactions, *, timeout_s: float | None = None
    ) -> TransactionDescriptions:
        return await self._within(timeout_s, self.transactions.queries.describe(request))

    async def list_transactions(
        self, request: ListTransactions, *, timeout_s: float | None = None
    ) -> TransactionListings:
        return await self._within(timeout_s, self.transactions.queries.list(request))

    async def describe_producers(
        self, request: DescribeProducers, *, timeout_s: float | None = None
    ) -> ProducerDescriptions:
        return await self._within(timeout_s, self.transactions.queries.describe_producers(request), change=True)
