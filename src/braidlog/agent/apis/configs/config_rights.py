"""Who may see and change the configs of each kind of resource."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.configs.services import ConfigContext
from braidlog.configs.resources import GROUP_RESOURCE, TOPIC_RESOURCE


def config_denial(operation: int, resource: Any, context: ConfigContext) -> ErrorCode | None:
    """The error for a client that may not do this to the configs of a resource.

    All but topics and groups belong to the cluster.
    """
    rights, kind, name = context.rights, resource.resource_type, str(resource.resource_name)
    if kind == TOPIC_RESOURCE:
        return None if rights.topic(operation, name) else ErrorCode.topic_authorization_failed
    if kind == GROUP_RESOURCE:
        return None if rights.group(operation, name) else ErrorCode.group_authorization_failed
    return None if rights.cluster(operation) else ErrorCode.cluster_authorization_failed
