"""AddPartitionsToTxn: adds partitions for one producer, or for many at once.

Brokers send the latter, from version 4 on.

From version 5 on clients know TRANSACTION_ABORTABLE; others are told INVALID_TXN_STATE.
"""

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import (
    CONTROL_FAILURES,
    GROUP_CALL_TIMEOUT_S,
    NO_THROTTLE,
    fenced_code,
    group_failure,
)
from braidlog.agent.apis.transactions.services import TransactionContext
from braidlog.control.interface import AddPartitionsToTransaction, TransactionOwner
from braidlog.security.acls import CLUSTER_ACTION, WRITE

KEY = 24
VERSIONS = range(6)

BATCHED_FROM = 4
ABORTABLE_FROM = 5


async def handle(request: Any, context: TransactionContext) -> Any:
    if context.version < BATCHED_FROM:
        owner = TransactionOwner(
            str(request.v3_and_below_transactional_id),
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
        )
        codes = await _add(owner, request.v3_and_below_topics, False, context)
        return context.answer(
            "AddPartitionsToTxnResponse",
            throttle_time=NO_THROTTLE,
            results_by_topic_v3_and_below=await _topics(request.v3_and_below_topics, codes, context),
        )
    if not context.rights.cluster(CLUSTER_ACTION):  # only brokers send these versions
        return context.answer(
            "AddPartitionsToTxnResponse",
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.cluster_authorization_failed,
            results_by_transaction=(),
        )
    results = []
    async for asked in context.turns.each(request.transactions):
        owner = TransactionOwner(str(asked.transactional_id), asked.producer_id, asked.producer_epoch)
        codes = await _add(owner, asked.topics, asked.verify_only, context)
        results.append(
            context.answer(
                "AddPartitionsToTxnResult",
                transactional_id=asked.transactional_id,
                topic_results=await _topics(asked.topics, codes, context),
            )
        )
    return context.answer(
        "AddPartitionsToTxnResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        results_by_transaction=tuple(results),
    )


async def _add(
    owner: TransactionOwner, topics: Sequence[Any], verify_only: bool, context: TransactionContext
) -> list[ErrorCode]:
    """Add partitions, all or none.

    Returns one code per partition, in the order of the request.
    """
    view, rights = context.services.view, context.rights
    wanted = [(topic.name, index) for topic in topics for index in topic.partitions]
    if context.version < BATCHED_FROM:
        if not rights.transactional_id(WRITE, owner.transactional_id):
            return [ErrorCode.transactional_id_authorization_failed] * len(wanted)
        denied = {topic.name for topic in topics if not rights.topic(WRITE, topic.name)}
        if denied:
            refused, others = ErrorCode.topic_authorization_failed, ErrorCode.operation_not_attempted
            return [refused if name in denied else others for name, _ in wanted]
    known = await context.turns.map(lambda each: view.partition(*each), wanted)
    if None in known and not verify_only:
        return [
            ErrorCode.unknown_topic_or_partition if each is None else ErrorCode.operation_not_attempted
            for each in known
        ]
    partitions = [(each.topic_id, each.index) for each in known if each is not None]
    try:
        answer = await context.services.control.add_partitions_to_transaction(
            AddPartitionsToTransaction(owner, partitions, verify_only), timeout_s=GROUP_CALL_TIMEOUT_S
        )
    except CONTROL_FAILURES as error:
        return [group_failure(error)] * len(wanted)
    codes = iter([answer.error_code] * len(partitions) if answer.error_code else answer.error_codes)
    return [
        _code(next(codes) if each is not None else ErrorCode.transaction_abortable, context)
        async for each in context.turns.each(known)
    ]


def _code(code: int, context: TransactionContext) -> ErrorCode:
    if code == ErrorCode.transaction_abortable and context.version < ABORTABLE_FROM:
        return ErrorCode.invalid_txn_state
    return fenced_code(code, context, fenced_from=2)


async def _topics(topics: Sequence[Any], codes: list[ErrorCode], context: TransactionContext) -> tuple[Any, ...]:
    remaining = iter(codes)

    def result(index: int) -> Any:
        return context.answer(
            "AddPartitionsToTxnPartitionResult", partition_index=index, partition_error_code=next(remaining)
        )

    return tuple(
        [
            context.answer(
                "AddPartitionsToTxnTopicResult",
                name=topic.name,
                results_by_partition=await context.turns.map(result, topic.partitions),
            )
            async for topic in context.turns.each(topics)
        ]
    )
