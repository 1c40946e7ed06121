"""DescribeTransactions: describes transactional ids and their partitions."""

from datetime import UTC, datetime, timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_CALL_TIMEOUT_S, NO_THROTTLE, group_failure
from braidlog.agent.apis.transactions.services import TransactionContext
from braidlog.control.interface import DescribeTransactions, TransactionDescription
from braidlog.security.acls import DESCRIBE

KEY = 65
VERSIONS = range(1)


async def handle(request: Any, context: TransactionContext) -> Any:
    wanted = list(dict.fromkeys(str(each) for each in request.transactional_ids))
    denied = [each for each in wanted if not context.rights.transactional_id(DESCRIBE, each)]
    wanted = [each for each in wanted if context.rights.transactional_id(DESCRIBE, each)]
    found = [TransactionDescription(ErrorCode.transactional_id_authorization_failed, each) for each in denied]
    try:
        answer = await context.services.control.describe_transactions(
            DescribeTransactions(wanted), timeout_s=GROUP_CALL_TIMEOUT_S
        )
        found += answer.transactions
    except CONTROL_FAILURES as error:
        found += [TransactionDescription(group_failure(error), each) for each in wanted]
    return context.answer(
        "DescribeTransactionsResponse",
        throttle_time=NO_THROTTLE,
        transaction_states=await context.turns.map(lambda each: _state(each, context), found),
    )


def _state(found: TransactionDescription, context: TransactionContext) -> Any:
    topics: dict[str, list[int]] = {}
    for topic_id, index in found.partitions:
        topic = context.services.view.topics_by_id.get(topic_id)
        if topic is not None and context.rights.topic(DESCRIBE, topic.info.name):
            topics.setdefault(topic.info.name, []).append(index)
    return context.answer(
        "TransactionState",
        error_code=ErrorCode(found.error_code),
        transactional_id=found.transactional_id,
        transaction_state=found.state,
        transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=found.timeout_ms)),
        transaction_start_time=datetime.fromtimestamp(found.started_ms / 1000, UTC),
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=tuple(
            context.answer("TopicData", topic=name, partitions=tuple(sorted(indexes)))
            for name, indexes in sorted(topics.items())
        ),
    )
