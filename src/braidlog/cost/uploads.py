"""A model of an agent's uploads: what a budget buys, and what else would cost.

Steady state: requests arrive evenly, and every agent has the same load. Pure.
"""

from dataclasses import dataclass

from braidlog.cost.bill import Usage, bill
from braidlog.cost.prices import DISK_USD_PER_GB_MONTH, GB, MONTH_S, Price, puts_per_s_for_budget

EARLY_IN_FLIGHT = 4
"""How many early objects of one stream may be on their way. Beyond that, requests gather."""


@dataclass(frozen=True, slots=True)
class UploadLoad:
    """The load of a cluster, and the settings of its agents."""

    bytes_per_s: float
    requests_per_s: float
    agents: int = 1
    shards: int = 1
    """Shards of each agent."""
    size_bytes: int = 4 << 20
    interval_s: float = 0.25
    put_s: float = 0.12
    """How long a PUT takes."""
    commit_s: float = 0.005
    """How long sequencing takes."""

    def __post_init__(self) -> None:
        if min(self.bytes_per_s, self.requests_per_s, self.put_s, self.commit_s) < 0:
            raise ValueError("rates and latencies cannot be negative")
        if min(self.agents, self.shards, self.size_bytes) < 1 or self.interval_s <= 0:
            raise ValueError("agents, shards, sizes and intervals must be above zero")


@dataclass(frozen=True, slots=True)
class UploadPace:
    """What the model predicts for one budget."""

    puts_per_s: float
    usd_month: float
    wait_s_mean: float
    """How long a request waits until its object is closed."""
    latency_s_mean: float
    """From the arrival of a request to its acknowledgement."""


def predict_uploads(load: UploadLoad, price: Price, budget_usd_month: float) -> UploadPace:
    """Predict uploads with one stream for each agent.

    `budget_usd_month` is for one agent, like the setting.
    """
    allowed = load.agents * puts_per_s_for_budget(budget_usd_month, price)
    return _pace(load, price, streams=load.agents, early_per_s=allowed)


def predict_per_shard(load: UploadLoad, price: Price, budget_usd_month: float) -> UploadPace:
    """Predict the same with one stream for each shard. The agent's budget stays."""
    allowed = load.agents * puts_per_s_for_budget(budget_usd_month, price)
    return _pace(load, price, streams=load.agents * load.shards, early_per_s=allowed)


def _pace(load: UploadLoad, price: Price, *, streams: int, early_per_s: float) -> UploadPace:
    if load.requests_per_s <= 0:
        return UploadPace(0.0, 0.0, 0.0, load.put_s + load.commit_s)
    between_s = streams / load.requests_per_s
    """The time between two requests of one stream."""
    due = max(load.bytes_per_s / load.size_bytes, streams / (load.interval_s + between_s))
    at_once = load.requests_per_s
    if load.put_s + load.commit_s > 0:
        at_once = min(at_once, streams * EARLY_IN_FLIGHT / (load.put_s + load.commit_s))
    puts_per_s = min(max(due, min(early_per_s, at_once)), max(due, load.requests_per_s))
    wait_s = min(max(0.0, streams / puts_per_s - between_s) / 2, load.interval_s)
    month = bill(
        Usage(put_count=round(puts_per_s * MONTH_S), upload_bytes=round(load.bytes_per_s * MONTH_S)),
        price,
        elapsed_s=MONTH_S,
    )
    return UploadPace(puts_per_s, month.total_usd, wait_s, wait_s + load.put_s + load.commit_s)


def kafka_month_usd(
    bytes_per_s: float, stored_bytes: float, price: Price, *, replicas: int = 3, zones: int = 3
) -> tuple[float, float]:
    """Return a month of traffic between zones, and of disks, on Kafka.

    Producers find a leader in their own zone by chance, followers are in other zones, and consumers read from the
    nearest replica. Brokers are not counted.
    """
    if replicas < 1 or zones < 1:
        raise ValueError(f"{replicas} replicas in {zones} zones")
    crossings = (zones - 1) / zones + replicas - -(-replicas // zones)
    both_ways_usd = 2 * price.cross_zone_usd_per_gb
    return (
        crossings * bytes_per_s * MONTH_S / GB * both_ways_usd,
        replicas * stored_bytes / GB * DISK_USD_PER_GB_MONTH,
    )
