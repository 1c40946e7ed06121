"""DescribeProducers: who has written to a partition lately, and whose transaction is open there."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import ADMIN_CALL_TIMEOUT_S_MAX, CONTROL_FAILURES, NO_THROTTLE
from braidlog.agent.context import RequestContext
from braidlog.control.interface import ActiveProducer, DescribeProducers

KEY = 61
VERSIONS = range(1)

COORDINATOR_EPOCH = 0


async def handle(request: Any, context: RequestContext) -> Any:
    view = context.agent.view
    known = {
        (topic.name, index): partition.partition_id
        for topic in request.topics
        for index in topic.partition_indexes
        if (partition := view.partition(topic.name, index)) is not None
    }
    failure = ErrorCode.none
    found: dict[int, list[ActiveProducer]] = {}
    try:
        answer = await context.agent.control.describe_producers(
            DescribeProducers(list(known.values())), timeout_s=ADMIN_CALL_TIMEOUT_S_MAX
        )
        found = {each.partition_id: each.producers for each in answer.partitions}
    except CONTROL_FAILURES:
        failure = ErrorCode.not_leader_or_follower

    def partition_answer(name: str, index: int) -> Any:
        producers = found.get(known.get((name, index), -1))
        code = failure
        if code == ErrorCode.none and producers is None:
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
        topics=tuple(
            context.answer(
                "TopicResponse",
                name=topic.name,
                partitions=tuple(partition_answer(topic.name, index) for index in topic.partition_indexes),
            )
            for topic in request.topics
        ),
    )


def _producer(producer: ActiveProducer, context: RequestContext) -> Any:
    return context.answer(
        "ProducerState",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_active_ms,
        coordinator_epoch=COORDINATOR_EPOCH,
        current_txn_start_offset=producer.transaction_start_offset,
    )
