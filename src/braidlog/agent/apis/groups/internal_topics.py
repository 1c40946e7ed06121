"""Kafka's own topics.

As in Kafka, each is created when a client first looks for a coordinator of its kind.

The control plane keeps groups, offsets and transactions elsewhere. But tools expect these topics, so they exist: real
ones with one partition each, to which nobody writes.
"""

from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_CALL_TIMEOUT_S, VIEW_WAIT_S_MAX, wait_until_visible
from braidlog.configs.names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from braidlog.control.interface import CreateTopics, NewTopic

_COMMON = {"cleanup.policy": "compact", "segment.bytes": "104857600"}

OFFSETS = NewTopic(OFFSETS_TOPIC, 1, 3, {**_COMMON, "compression.type": "producer"})
TRANSACTIONS = NewTopic(
    TRANSACTIONS_TOPIC,
    1,
    3,
    {
        **_COMMON,
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": "false",
    },
)
"""Both topics have the settings that Kafka gives them."""


async def ensure_topic(topic: NewTopic, context: GroupContext) -> None:
    """Create a topic if it does not exist.

    Nothing depends on it, so a failure is ignored.
    """
    view = context.services.view
    if topic.name in view.topics_by_name:
        return
    try:
        await context.services.control.create_topics(CreateTopics([topic]), timeout_s=GROUP_CALL_TIMEOUT_S)
    except CONTROL_FAILURES:
        return
    await wait_until_visible(view, lambda: topic.name in view.topics_by_name, VIEW_WAIT_S_MAX)
