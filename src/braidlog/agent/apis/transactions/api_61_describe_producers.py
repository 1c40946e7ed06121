"""DescribeProducers: lists a partition's recent producers and transactions.

The transactions are the open ones.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import ADMIN_CALL_TIMEOUT_S_MAX, CONTROL_FAILURES, NO_THROTTLE
from braidlog.agent.apis.transactions.services import TransactionContext
from braidlog.control.interface import ActiveProducer, DescribeProducers
from braidlog.security.acls import READ

KEY = 61
VERSIONS = range(1)

COORDINATOR_EPOCH = 0


async def handle(request: Any, context: TransactionContext) -> Any:
    view, rights = context.services.view, context.rights
    known = {
        (topic.name, index): partition.partition_id
        for topic in request.topics
        async for index in context.turns.each(topic.partition_indexes)
        if rights.topic(READ, topic.name) and (partition := view.partition(topic.name, index)) is not None
    }
    asked: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    failure = ErrorCode.none
    found: dict[int, list[ActiveProducer]] = {}
    try:
        answer = await context.services.control.describe_producers(
            DescribeProducers(list(known.values())), timeout_s=ADMIN_CALL_TIMEOUT_S_MAX
        )
        found = {each.partition_id: each.producers for each in answer.partitions}
    except CONTROL_FAILURES:
        failure = ErrorCode.not_leader_or_follower

    def partition_answer(name: str, index: int) -> Any:
        producers = found.get(known.get((name, index), -1))
        code = failure
        if not rights.topic(READ, name):
            code = ErrorCode.topic_authorization_failed
        elif code == ErrorCode.none and producers is None:
            code = ErrorCode.unknown_topic_or_partition
        return context.answer(
            "PartitionResponse",
            partition_index=index,
            error_code=code,
            error_message=None,
            active_producers=tuple(_producer(each, context) for each in producers or ()),
        )

    return context.answer(
        "DescribeProducersResponse",
        throttle_time=NO_THROTTLE,
        # Each partition once: its answer is much longer than its name.
        topics=tuple(
            [
                context.answer(
                    "TopicResponse",
                    name=name,
                    partitions=tuple([partition_answer(name, index) async for index in context.turns.each(indexes)]),
                )
                for name, indexes in asked.items()
            ]
        ),
    )


def _producer(producer: ActiveProducer, context: TransactionContext) -> Any:
    return context.answer(
        "ProducerState",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_active_ms,
        coordinator_epoch=COORDINATOR_EPOCH,
        current_txn_start_offset=producer.transaction_start_offset,
    )
