"""DescribeQuorum: describes who keeps the metadata.

Clients see one controller, which all agents follow.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.cluster.services import ClusterContext
from braidlog.agent.apis.shared import CLUSTER_DENIED
from braidlog.control.interface import AgentInfo
from braidlog.security.acls import DESCRIBE

KEY = 55
VERSIONS = range(3)

METADATA_TOPIC = "__cluster_metadata"


async def handle(request: Any, context: ClusterContext) -> Any:
    view = context.services.view
    if not context.rights.cluster(DESCRIBE):
        code = ErrorCode.cluster_authorization_failed
        return context.answer(
            "DescribeQuorumResponse", error_code=code, error_message=CLUSTER_DENIED, topics=(), nodes=()
        )
    leader = view.agents.get(view.controller_id)
    return context.answer(
        "DescribeQuorumResponse",
        error_code=ErrorCode.none,
        error_message="",
        topics=tuple(
            [
                context.answer(
                    "TopicData",
                    topic_name=topic.topic_name,
                    partitions=tuple(
                        [
                            _partition(topic.topic_name, partition.partition_index, context)
                            async for partition in context.turns.each(topic.partitions)
                        ]
                    ),
                )
                async for topic in context.turns.each(request.topics)
            ]
        ),
        nodes=(_node(leader, context),) if leader is not None and context.version >= 2 else (),
    )


def _partition(topic_name: str, index: int, context: ClusterContext) -> Any:
    view = context.services.view
    known = topic_name == METADATA_TOPIC and index == 0
    others = [node_id for node_id in sorted(view.agents) if node_id != view.controller_id]
    return context.answer(
        "PartitionData",
        partition_index=index,
        error_code=ErrorCode.none if known else ErrorCode.unknown_topic_or_partition,
        error_message="" if known else "This server does not host this topic-partition.",
        leader_id=view.controller_id if known else 0,
        leader_epoch=max(0, view.position.fencing_epoch) if known else 0,
        high_watermark=max(0, view.position.revision) if known else 0,
        current_voters=(_replica(view.controller_id, context),) if known else (),
        observers=tuple(_replica(node_id, context) for node_id in others) if known else (),
    )


def _replica(node_id: int, context: ClusterContext) -> Any:
    """The state of a replica.

    As far as this agent knows, the others have seen what it has seen.
    """
    now_ms = context.services.clock.wall_ms()
    return context.answer(
        "ReplicaState",
        replica_id=node_id,
        replica_directory_id=None,
        log_end_offset=max(0, context.services.view.position.revision),
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )


def _node(agent: AgentInfo, context: ClusterContext) -> Any:
    listener = context.answer("Listener", name="CONTROLLER", host=agent.host, port=agent.port)
    return context.answer("Node", node_id=agent.node_id, listeners=(listener,))
