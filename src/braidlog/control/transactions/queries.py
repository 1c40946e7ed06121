"""Queries about transactions: aborted records, and descriptions.

The descriptions are for administrators.
"""

from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode
from msgspec import structs

from braidlog.control.catalog import Catalog
from braidlog.control.groups.topic_pattern import InvalidPattern, TopicPattern
from braidlog.control.interface import (
    DescribeProducers,
    DescribeTransactions,
    FindAborted,
    FoundAborted,
    ListTransactions,
    PartitionBounds,
    PartitionProducers,
    ProducerDescriptions,
    TransactionDescription,
    TransactionDescriptions,
    TransactionListing,
    TransactionListings,
)
from braidlog.control.log.producers import Producers
from braidlog.control.metadata.store import MetadataStore, Transaction
from braidlog.control.transactions.aborted import find_aborted
from braidlog.control.transactions.state import Transactional
from braidlog.runtime.clock import Clock


class TransactionQueries:
    """Answers queries. `ids` is the coordinator's own table."""

    def __init__(
        self,
        metadata: MetadataStore,
        catalog: Catalog,
        producers: Producers,
        ids: Mapping[str, Transactional],
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._catalog = catalog
        self._producers = producers
        self._ids = ids
        self._clock = clock

    async def find_aborted(self, request: FindAborted) -> FoundAborted:
        partition_id = request.partition_id

        def find(tx: Transaction) -> list[tuple[int, int, int]]:
            return find_aborted(tx, partition_id, request.start_offset, request.end_offset)

        aborted = await self._metadata.read(find)
        # Read the bounds afterwards: records removed meanwhile then lie below the start that is reported.
        state = self._catalog.partitions.get(partition_id)
        if state is None:
            return FoundAborted(PartitionBounds(partition_id, 0, 0, 0), [], known=False)
        return FoundAborted(
            state.bounds,
            [(producer_id, first_offset) for producer_id, first_offset, _ in aborted],
            marker_offsets=[marker_offset for _, _, marker_offset in aborted],
        )

    async def describe(self, request: DescribeTransactions) -> TransactionDescriptions:
        return TransactionDescriptions([self._describe(each) for each in request.transactional_ids])

    def _describe(self, transactional_id: str) -> TransactionDescription:
        if not transactional_id:
            return TransactionDescription(int(ErrorCode.invalid_request), transactional_id)
        known = self._ids.get(transactional_id)
        if known is None:
            return TransactionDescription(int(ErrorCode.transactional_id_not_found), transactional_id)
        states = (self._catalog.partitions.get(partition_id) for partition_id in known.partitions)
        return TransactionDescription(
            0,
            transactional_id,
            str(known.state),
            known.timeout_ms,
            known.started_ms,
            known.producer_id,
            known.epoch,
            [(state.topic_id, state.index) for state in states if state is not None],
        )

    async def describe_producers(self, request: DescribeProducers) -> ProducerDescriptions:
        partitions = self._catalog.partitions
        found = await self._producers.describe(each for each in request.partition_ids if each in partitions)
        return ProducerDescriptions(
            [
                PartitionProducers(
                    each.partition_id,
                    [
                        structs.replace(
                            writer,
                            transaction_start_offset=partitions[each.partition_id].open_transactions.get(
                                writer.producer_id, -1
                            ),
                        )
                        for writer in each.producers
                    ],
                )
                for each in found.partitions
                if each.partition_id in partitions
            ]
        )

    async def list(self, request: ListTransactions) -> TransactionListings:
        try:
            pattern = TopicPattern(request.pattern) if request.pattern else None
        except InvalidPattern:
            return TransactionListings([], int(ErrorCode.invalid_regular_expression))
        return TransactionListings(
            [
                _listing(known)
                for known in self._matching(request)
                if pattern is None or pattern.matches(known.transactional_id)
            ]
        )

    def _matching(self, request: ListTransactions) -> Iterable[Transactional]:
        states, producer_ids = frozenset(request.states), frozenset(request.producer_ids)
        now_ms = self._clock.wall_ms()
        for known in self._ids.values():
            if states and str(known.state) not in states:
                continue
            if producer_ids and known.producer_id not in producer_ids:
                continue
            if request.duration_ms_min >= 0 and not (
                known.is_ongoing and now_ms - known.started_ms >= request.duration_ms_min
            ):
                continue
            yield known


def _listing(known: Transactional) -> TransactionListing:
    return TransactionListing(known.transactional_id, known.producer_id, str(known.state))
