"""TxnOffsetCommit: offsets that become visible with the transaction. From version 5 on the group need not be added."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_CALL_TIMEOUT_S, NO_THROTTLE, group_failure
from braidlog.agent.context import RequestContext
from braidlog.control.interface import CommitOffsets, CommitTransactionOffsets, OffsetToCommit, TransactionOwner

KEY = 28
VERSIONS = range(6)

ABORTABLE_FROM = 4
ADDS_GROUP_FROM = 5


async def handle(request: Any, context: RequestContext) -> Any:
    view = context.agent.view
    codes: dict[tuple[int, int], int] = {}  # by place in the request: topic, partition
    offsets: dict[tuple[int, int], OffsetToCommit] = {}
    for i, topic in enumerate(request.topics):
        for j, wanted in enumerate(topic.partitions):
            partition = view.partition(topic.name, wanted.partition_index)
            if partition is None:
                codes[i, j] = ErrorCode.unknown_topic_or_partition
            else:
                offsets[i, j] = OffsetToCommit(
                    topic_id=partition.topic_id,
                    partition=partition.index,
                    offset=wanted.committed_offset,
                    leader_epoch=getattr(wanted, "committed_leader_epoch", -1),
                    metadata=wanted.committed_metadata or "",
                )
    if offsets:
        codes |= zip(offsets, await _commit(request, list(offsets.values()), context), strict=True)
    return context.answer(
        "TxnOffsetCommitResponse",
        throttle_time=NO_THROTTLE,
        topics=tuple(
            context.answer(
                "TxnOffsetCommitResponseTopic",
                name=topic.name,
                partitions=tuple(
                    context.answer(
                        "TxnOffsetCommitResponsePartition",
                        partition_index=wanted.partition_index,
                        error_code=_code(codes[i, j], context),
                    )
                    for j, wanted in enumerate(topic.partitions)
                ),
            )
            for i, topic in enumerate(request.topics)
        ),
    )


async def _commit(request: Any, offsets: list[OffsetToCommit], context: RequestContext) -> list[int]:
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
        answer = await context.agent.control.commit_transaction_offsets(commit, timeout_s=GROUP_CALL_TIMEOUT_S)
    except CONTROL_FAILURES as error:
        return [group_failure(error)] * len(offsets)
    return answer.error_codes


def _code(code: int, context: RequestContext) -> ErrorCode:
    if code == ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch  # what a group coordinator says, whatever the version
    if code == ErrorCode.invalid_txn_state and context.version >= ABORTABLE_FROM:
        return ErrorCode.transaction_abortable
    return ErrorCode(code)
