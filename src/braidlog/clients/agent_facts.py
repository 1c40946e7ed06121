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
    zone: str = ""
    metrics: str = ""
    """Where it serves its metrics; empty: nowhere."""
    price: str = ""
    """The name of the price list that it goes by."""
    budget_usd_month: float = 0.0
    size_bytes: int = 4 << 20
    interval_ms: int = 250
    shards: int = 1


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

    return AgentFacts(
        node_id,
        value("braidlog.control"),
        value("log.dirs"),
        value("broker.rack"),
        value("braidlog.metrics"),
        value("braidlog.store.price"),
        float(value("braidlog.upload.budget.usd.month") or 0),
        int(value("braidlog.upload.size.bytes") or 4 << 20),
        int(value("braidlog.upload.interval.ms") or 250),
        int(value("braidlog.shards") or 1),
    )
