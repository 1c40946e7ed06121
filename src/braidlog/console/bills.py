"""The cost page: the bill now, by topic and by kind, beside other ways to do it."""

from typing import Any

from braidlog.clients.agent_facts import AgentFacts
from braidlog.console.desk import Arguments, Desk, ordered, page_of
from braidlog.console.figures import Change
from braidlog.console.load import chosen_price, store_rates
from braidlog.cost.prices import AS_OF, GB, MONTH_S, PRICES, Price
from braidlog.cost.topics import share_out
from braidlog.cost.uploads import UploadLoad, kafka_month_usd, predict_per_shard, predict_uploads

BUDGETS_USD = [0, 1, 2, 4, 6, 8, 10, 15, 20, 25, 30, 40, 50, 65, 80, 100, 130, 160, 200, 260, 330, 420, 550, 700, 1000]
"""The stops of the slider: dollars a month for one agent."""
PACE_SAMPLES = 60
PUT_S_ASSUMED = 0.12
"""The time of a PUT where none was seen."""
ZONES = 3


async def cost(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """Give the bill of a month at the present pace."""
    desk.sampler.look()
    if len(desk.sampler.samples) < 2:
        await desk.sampler.take()
    price, is_other = chosen_price(desk, arguments.text("price"))
    change = desk.sampler.pace(PACE_SAMPLES)
    sizes = await desk.cluster.sizes()
    stored_bytes = sum(sizes.values())
    kinds = _kinds(change, stored_bytes, price)
    rows, page = _topics(change, sizes, kinds, arguments)
    load = _upload_load(desk, change)
    budget_usd = own_budget_usd(desk.sampler.facts)
    per_agent_usd = _per_agent(desk.sampler.facts, budget_usd)
    now = predict_uploads(load, price, per_agent_usd)
    kafka_traffic_usd, kafka_disks_usd = kafka_month_usd(load.bytes_per_s, stored_bytes, price, zones=ZONES)
    per_shard = predict_per_shard(load, price, per_agent_usd)
    total_usd = sum(kinds.values())
    return {
        "price": price.name,
        "prices": [each for each in PRICES if each != "free"],
        "as_of": AS_OF,
        "is_other_price": is_other,
        "known": change is not None,
        "over_s": round(change.seconds) if change is not None else 0,
        "month_usd": total_usd,
        "kinds": [{"kind": kind, "usd_month": usd} for kind, usd in kinds.items()],
        "budget_usd_month": budget_usd,
        "stored_bytes": stored_bytes,
        "bytes_s": load.bytes_per_s,
        "requests_s": load.requests_per_s,
        "agents": load.agents,
        "shards": load.shards,
        "put_s": load.put_s,
        "beside": [
            {"way": "Braidlog now", "usd_month": total_usd, "detail": "requests, transfer and storage, measured"},
            {
                "way": "one upload stream per shard",
                "usd_month": total_usd + max(0.0, per_shard.puts_per_s - now.puts_per_s) * MONTH_S * price.put_usd,
                "detail": f"{per_shard.puts_per_s:.2f} PUT/s instead of {now.puts_per_s:.2f} PUT/s by the model",
            },
            {
                "way": "Kafka, three replicas",
                "usd_month": kafka_traffic_usd + kafka_disks_usd,
                "detail": f"traffic between {ZONES} zones {kafka_traffic_usd:,.2f}, disks {kafka_disks_usd:,.2f}",
            },
        ],
        "curve": _curve(load, price),
        "budget_per_agent_usd": per_agent_usd,
        "rows": rows,
        **page,
    }


def own_budget_usd(facts: list[AgentFacts]) -> float:
    """Add up the budgets of the agents. The shards of one agent share its budget."""
    return sum(each.budget_usd_month / max(1, each.shards) for each in facts)


def _agent_count(facts: list[AgentFacts]) -> int:
    return max(1, round(sum(1 / max(1, each.shards) for each in facts)))


def _per_agent(facts: list[AgentFacts], budget_usd: float) -> float:
    return budget_usd / _agent_count(facts)


def _kinds(change: Change | None, stored_bytes: int, price: Price) -> dict[str, float]:
    rates = store_rates(change) if change is not None else dict.fromkeys(("put", "get", "list", "delete"), 0.0)
    return {
        "PUT": rates["put"] * MONTH_S * price.put_usd,
        "GET": rates["get"] * MONTH_S * price.get_usd,
        "LIST": rates["list"] * MONTH_S * price.list_usd,
        "transfer": MONTH_S
        / GB
        * (
            rates.get("upload_bytes", 0.0) * price.upload_usd_per_gb
            + rates.get("download_bytes", 0.0) * price.retrieval_usd_per_gb
        ),
        "storage": stored_bytes / GB * price.storage_usd_per_gb_month,
    }


def _topics(
    change: Change | None, sizes: dict[str, int], kinds: dict[str, float], arguments: Arguments
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Share the bill out over topics.

    Uploads and reads go by the bytes written, storage by the bytes held.
    """
    written = change.rates_by("braidlog_upload_bytes_total", "topic") if change is not None else {}
    by_pace = {topic: round(rate * 1000) for topic, rate in written.items() if rate > 0}
    moving_usd = share_out(kinds["PUT"] + kinds["LIST"] + kinds["transfer"], by_pace) if by_pace else {}
    reading_usd = share_out(kinds["GET"], by_pace) if by_pace else {}
    keeping_usd = share_out(kinds["storage"], sizes) if sum(sizes.values()) else {}
    rows = [
        {
            "topic": topic,
            "usd_month": moving_usd.get(topic, 0.0) + reading_usd.get(topic, 0.0) + keeping_usd.get(topic, 0.0),
            "uploads_usd": moving_usd.get(topic, 0.0),
            "reads_usd": reading_usd.get(topic, 0.0),
            "storage_usd": keeping_usd.get(topic, 0.0),
            "bytes_s": written.get(topic, 0.0),
            "stored_bytes": sizes.get(topic, 0),
        }
        for topic in {*sizes, *written}
    ]
    by_name = {row["topic"]: row for row in ordered(rows, lambda row: (row["usd_month"], row["topic"]))}
    names, page = page_of(list(by_name), arguments)
    return [by_name[name] for name in names], page


def _upload_load(desk: Desk, change: Change | None) -> UploadLoad:
    facts = desk.sampler.facts
    shards = max((each.shards for each in facts), default=1)
    put_s = change.quantile("braidlog_store_request_seconds", 0.5, operation="put") if change is not None else None
    return UploadLoad(
        sum(change.rates_by("braidlog_upload_bytes_total", "topic").values()) if change is not None else 0.0,
        change.rate("braidlog_agent_requests_total", api="produce") if change is not None else 0.0,
        _agent_count(facts),
        shards,
        min((each.size_bytes for each in facts), default=4 << 20),
        min((each.interval_ms for each in facts), default=250) / 1000,
        put_s if put_s is not None else PUT_S_ASSUMED,
    )


def _curve(load: UploadLoad, price: Price) -> list[dict[str, float]]:
    """Give what each stop of the slider buys.

    Without load there is nothing to buy, so a small load is assumed.
    """
    shown = load if load.requests_per_s > 0 else UploadLoad(1e6, 50.0, load.agents, load.shards, put_s=load.put_s)
    found = []
    for budget_usd in BUDGETS_USD:
        pace = predict_uploads(shown, price, budget_usd)
        found.append(
            {
                "budget_usd": budget_usd,
                "latency_ms": round(pace.latency_s_mean * 1000, 1),
                "puts_s": round(pace.puts_per_s, 3),
                "usd_month": round(pace.usd_month, 4),
            }
        )
    return found
