"""Kafka's numbers for the types of resources that have configs.

They are sent and stored: keep them stable.
"""

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
"""An agent, or without a name the whole cluster."""
LOGGER_RESOURCE = 8
CLIENT_METRICS_RESOURCE = 16
GROUP_RESOURCE = 32
RESOURCE_TYPES = (TOPIC_RESOURCE, BROKER_RESOURCE, LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE)
