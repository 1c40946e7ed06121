"""DescribeCluster: lists the agents and the one for administrative requests."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.cluster.services import ClusterContext
from braidlog.agent.apis.shared import NO_THROTTLE, cluster_operations

KEY = 60
VERSIONS = range(3)

BROKERS = 1
CONTROLLERS = 2


async def handle(request: Any, context: ClusterContext) -> Any:
    view = context.services.view
    endpoint_type = getattr(request, "endpoint_type", BROKERS)
    code, message = ErrorCode.none, None
    if endpoint_type == CONTROLLERS:
        code = ErrorCode.mismatched_endpoint_type
        message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
    elif endpoint_type != BROKERS:
        code = ErrorCode.unsupported_endpoint_type
        message = f"Unsupported endpoint type {endpoint_type}"
    agents = [] if code else [view.agents[node_id] for node_id in sorted(view.agents)]
    return context.answer(
        "DescribeClusterResponse",
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        endpoint_type=endpoint_type,
        cluster_id="" if code else view.cluster_id,
        controller_id=-1 if code else view.controller_id,
        brokers=tuple(
            context.answer(
                "DescribeClusterBroker",
                broker_id=agent.node_id,
                host=agent.address_for(context.listener)[0],
                port=agent.address_for(context.listener)[1],
                rack=agent.zone or None,
                is_fenced=False,
            )
            for agent in agents
        ),
        cluster_authorized_operations=cluster_operations(
            context.rights, told=request.include_cluster_authorized_operations
        ),
    )
