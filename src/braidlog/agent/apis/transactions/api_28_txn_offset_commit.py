"""TxnOffsetCommit: commits offsets with a transaction.

From version 5 on, the group need not be added before.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.offsets_to_commit import offsets_to_commit
from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_CALL_TIMEOUT_S, NO_THROTTLE, group_failure
from braidlog.agent.apis.transactions.services import TransactionContext
from braidlog.control.interface import CommitOffsets, CommitTransactionOffsets, OffsetToCommit, TransactionOwner
from braidlog.security.acls import READ, WRITE

KEY = 28
VERSIONS = range(6)

ABORTABLE_FROM = 4
ADDS_GROUP_FROM = 5


async def handle(request: Any, context: TransactionContext) -> Any:
    rights = context.rights
    offsets, codes = await offsets_to_commit(request.topics, context.services.view, context.turns, rights)
    if not rights.transactional_id(WRITE, str(request.transactional_id)):
        codes |= dict.fromkeys([*offsets, *codes], ErrorCode.transactional_id_authorization_failed)
    elif not rights.group(READ, str(request.group_id)):
        codes |= dict.fromkeys([*offsets, *codes], ErrorCode.group_authorization_failed)
    elif offsets:
        codes |= zip(offsets, await _commit(request, list(offsets.values()), context), strict=True)
    return context.answer(
        "TxnOffsetCommitResponse",
        throttle_time=NO_THROTTLE,
        topics=tuple(
            [
                context.answer(
                    "TxnOffsetCommitResponseTopic",
                    name=topic.name,
                    partitions=tuple(
                        [
                            context.answer(
                                "TxnOffsetCommitResponsePartition",
                                partition_index=wanted.partition_index,
                                error_code=_code(codes[i, j], context),
                            )
                            async for j, wanted in context.turns.each(enumerate(topic.partitions))
                        ]
                    ),
                )
                for i, topic in enumerate(request.topics)
            ]
        ),
    )


async def _commit(request: Any, offsets: list[OffsetToCommit], context: TransactionContext) -> list[int]:
    commit = CommitTransactionOffsets(
        TransactionOwner(str(request.transactional_id), request.producer_id, request.producer_epoch),
        CommitOffsets(
            group_id=str(request.group_id),
            generation_id=getattr(request, "generation_id", -1),
            member_id=getattr(request, "member_id", ""),
            group_instance_id=getattr(request, "group_instance_id", None),
            offsets=offsets,
        ),
        adds_group=context.version >= ADDS_GROUP_FROM,
    )
    try:
        answer = await context.services.control.commit_transaction_offsets(commit, timeout_s=GROUP_CALL_TIMEOUT_S)
    except CONTROL_FAILURES as error:
        return [group_failure(error)] * len(offsets)
    return answer.error_codes


def _code(code: int, context: TransactionContext) -> ErrorCode:
    if code == ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch  # as Kafka's group coordinator does, in every version
    if code == ErrorCode.invalid_txn_state and context.version >= ABORTABLE_FROM:
        return ErrorCode.transaction_abortable
    return ErrorCode(code)
