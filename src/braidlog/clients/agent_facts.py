"""What an agent says of itself: its control plane, its store, its metrics."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from braidlog.clients.kafka_client import CALL_TIMEOUT_S, admin, result

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """The settings of an agent that its clients may read."""

    node_id: int
    control: str
    """The addresses of the control plane, as the agent reaches them."""
    store_url: str


def find_agent(bootstrap: str) -> AgentFacts:
    """Ask any one of the agents behind `bootstrap` for its facts."""
    client = admin(bootstrap)
    brokers = client.list_topics(timeout=CALL_TIMEOUT_S).brokers
    return ask_agent(client, min(brokers))


def ask_agent(client: "AdminClient", node_id: int) -> AgentFacts:
    from confluent_kafka.admin import ConfigResource

    resource = ConfigResource(ConfigResource.Type.BROKER, str(node_id))
    entries = result(client.describe_configs([resource]), resource)

    def value(name: str) -> str:
        entry = entries.get(name)
        return str(entry.value or "") if entry is not None else ""

    return AgentFacts(node_id, value("braidlog.control"), value("log.dirs"))
