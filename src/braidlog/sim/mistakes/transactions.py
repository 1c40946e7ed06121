"""Mistakes in transactions."""

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.cluster.view import ClusterView, PartitionView
from braidlog.control.interface import CommitOffsetsAnswer, CommitTransactionOffsets, TransactionOwner
from braidlog.control.partitions import PartitionState
from braidlog.control.transactions import coordinator as transactions
from braidlog.control.transactions import plans as transaction_plans
from braidlog.control.transactions.plans import AppendPlan, EndPlan
from braidlog.control.transactions.rounds import Round
from braidlog.control.transactions.state import Ending, Transactional
from braidlog.objects.layout import BatchEntry
from braidlog.sim.mistakes.mistake import mistake, replaced

SCENARIO = "transactions"
CRASHES = "transaction-crashes"


@mistake("Serves undecided records to readers of committed data.", SCENARIO)
def _serve_past_the_stable_offset() -> AbstractContextManager[None]:
    return replaced((PartitionView, "last_stable_offset", property(lambda self: self.high_watermark)))


@mistake("Writes the marker of a transaction only into its first partition.", SCENARIO)
def _marker_in_one_partition_only() -> AbstractContextManager[None]:
    original = EndPlan._add_marker

    def add_marker(self: EndPlan, state: PartitionState, ending: Ending, first_offset: int, marker: bytes) -> None:
        done = self.__dict__.setdefault("done", set())
        if ending.transactional.producer_id not in done:
            done.add(ending.transactional.producer_id)
            original(self, state, ending, first_offset, marker)
        else:
            state.open_transactions.pop(ending.transactional.producer_id, None)

    return replaced((EndPlan, "_add_marker", add_marker))


@mistake("Decides first and writes the markers afterwards, in a second step.", CRASHES)
def _decision_before_the_markers() -> AbstractContextManager[None]:
    original = transactions.Transactions._run_round

    class Slow:
        """A metadata store that writes the decision first, and the rest after a while."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        async def plan(self, write: Any) -> Any:
            ends = write.__self__.ends
            if ends.extent_count:
                await self._inner.plan(lambda tx: _write_decision(tx, ends))
                await asyncio.sleep(0.3)
            return await self._inner.plan(write)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    def _write_decision(tx: Any, plan: EndPlan) -> None:
        extents, aborted, settling = plan._extents, plan._aborted_rows, plan._settling
        plan._extents, plan._aborted_rows, plan._settling = [], [], None
        try:
            plan.write(tx)
        finally:
            plan._extents, plan._aborted_rows, plan._settling = extents, aborted, settling

    async def run_round(self: transactions.Transactions, plans: list[Any]) -> list[Any]:
        metadata = self._metadata
        self._metadata = Slow(metadata)
        try:
            return await original(self, plans)
        finally:
            self._metadata = metadata

    return replaced((transactions.Transactions, "_run_round", run_round))


@mistake("Accepts a late batch of a transaction that has ended, which opens another one.", CRASHES)
def _late_batch_after_the_marker() -> AbstractContextManager[None]:
    original = AppendPlan.admit

    def admit(self: AppendPlan, batch: BatchEntry, state: PartitionState) -> int:
        code = original(self, batch, state)
        is_late = code in (ErrorCode.invalid_txn_state, ErrorCode.invalid_producer_epoch)
        return 0 if is_late else code

    return replaced((AppendPlan, "admit", admit))


@mistake("Shows the offsets of a transaction before it is committed.", SCENARIO)
def _offsets_before_the_commit() -> AbstractContextManager[None]:
    original = transactions.Transactions.commit_offsets

    async def commit_offsets(self: transactions.Transactions, request: CommitTransactionOffsets) -> CommitOffsetsAnswer:
        answer = await original(self, request)
        if not any(answer.error_codes):
            await self._groups.commit_offsets(request.commit)  # type: ignore[attr-defined]
        return answer

    return replaced((transactions.Transactions, "commit_offsets", commit_offsets))


@mistake("Lets a fenced producer end the transaction of its successor.", SCENARIO)
def _fenced_producer_may_commit() -> AbstractContextManager[None]:
    def check_owner(self: Transactional, owner: TransactionOwner) -> int:
        return 0 if owner.producer_id == self.producer_id else int(ErrorCode.invalid_producer_id_mapping)

    return replaced((Transactional, "check_owner", check_owner))


@mistake("Lets a new producer inherit the open transaction of its predecessor.", SCENARIO)
def _pending_transaction_inherited() -> AbstractContextManager[None]:
    original = transactions.Transactions._renew

    def renew(self: transactions.Transactions, known: Transactional, request: Any, now: Round) -> Any:
        partitions, offsets, was_ongoing = known.partitions, dict(known.offsets), known.is_ongoing
        opened = {each: self._catalog.partitions[each] for each in partitions}
        before = {each: dict(state.open_transactions) for each, state in opened.items()}
        known.partitions = {}
        answer = original(self, known, request, now)
        known.partitions = partitions

        def inherit() -> None:
            known.begin(now.now_ms)
            known.partitions, known.offsets = partitions, offsets
            for each, state in opened.items():
                state.open_transactions = before[each]
            self._track(known)

        if was_ongoing and not answer.error_code:
            now.add(lambda tx: None, inherit)
        return answer

    return replaced((transactions.Transactions, "_renew", renew))


@mistake("Forgets at a restart which transactions are open.", SCENARIO)
def _open_transactions_not_durable() -> AbstractContextManager[None]:
    return replaced(
        (transaction_plans, "save_partitions", lambda tx, rows: None),
        (transactions, "save_partitions", lambda tx, rows: None),
    )


@mistake("Assumes that a log it has just loaded has no aborted transactions.", SCENARIO)
def _aborted_ones_forgotten_at_a_reload() -> AbstractContextManager[None]:
    original = ClusterView._load_bounds

    def load_bounds(self: ClusterView, bounds: Any) -> None:
        original(self, bounds)
        for partition in self.partitions.values():
            partition.aborted_known_from = 0

    return replaced((ClusterView, "_load_bounds", load_bounds))
