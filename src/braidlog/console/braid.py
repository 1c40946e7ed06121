"""The braid: every shard a strand over time, with the groups that upload together."""

from itertools import pairwise
from typing import Any

from braidlog.clients.agent_facts import AgentFacts
from braidlog.console.desk import Arguments, Desk
from braidlog.console.figures import Change, Figures, Sample, total
from braidlog.runtime.quantities import Address


def strands(desk: Desk, brokers: dict[int, Address]) -> list[dict[str, Any]]:
    """List the shards of all agents, those of one agent together, in order."""
    last = desk.sampler.last
    found = []
    for facts in desk.sampler.facts:
        address = brokers.get(facts.node_id)
        figures = last.by_place.get(facts.metrics, {}) if last is not None else {}
        shard = round(total(figures, "braidlog_upload_shard")) if facts.shards > 1 else 0
        agent = f"{address.host}:{address.port - shard}" if address is not None else f"node {facts.node_id}"
        found.append(
            {
                "node_id": facts.node_id,
                "agent": agent,
                "zone": facts.zone or None,
                "shard": shard,
                "shards": facts.shards,
                "place": facts.metrics,
            }
        )
    return sorted(found, key=lambda each: (str(each["zone"]), each["agent"], each["shard"]))


def knot(before: Sample, after: Sample, facts: list[AgentFacts]) -> dict[str, Any]:
    """Give one moment of the braid: each shard's group, and the objects that left."""
    change = Change(before, after)
    return {
        "at_ms": after.at_ms,
        "shards": {
            str(each.node_id): _moment(change, after.by_place.get(each.metrics), each)
            for each in facts
            if each.metrics in after.by_place
        },
    }


def _moment(change: Change, figures: Figures | None, facts: AgentFacts) -> dict[str, float]:
    if figures is None or facts.metrics not in change.places:
        return {"group": 0, "objects": 0, "bytes": 0, "backlog": 0}
    place, seconds = facts.metrics, change.seconds
    return {
        "group": round(total(figures, "braidlog_upload_group")),
        "objects": round(change.rate_of(place, "braidlog_store_requests_total", operation="put") * seconds),
        "bytes": round(change.rate_of(place, "braidlog_store_bytes_total", direction="upload") * seconds),
        "backlog": total(figures, "braidlog_agent_backlog_bytes"),
        "splits": total(figures, "braidlog_upload_splits_total"),
        "merges": total(figures, "braidlog_upload_merges_total"),
    }


async def uploads(desk: Desk, _arguments: Arguments) -> dict[str, Any]:
    """Give the braid of the last minutes, and a row for each shard."""
    desk.sampler.look()
    brokers = await desk.cluster.brokers()
    if not desk.sampler.facts:
        await desk.sampler.take()
    samples = list(desk.sampler.samples)
    facts = desk.sampler.facts
    knots = [knot(before, after, facts) for before, after in pairwise(samples)]
    pace, last = desk.sampler.pace(), desk.sampler.last
    rows = []
    for strand in strands(desk, brokers):
        place = strand.pop("place")
        figures = last.by_place.get(place, {}) if last is not None else {}
        known = pace is not None and place in pace.places
        rows.append(
            {
                **strand,
                "group": round(total(figures, "braidlog_upload_group")),
                "objects_s": round(pace.rate_of(place, "braidlog_store_requests_total", operation="put"), 2)
                if pace is not None and known
                else None,
                "bytes_s": round(pace.rate_of(place, "braidlog_store_bytes_total", direction="upload"))
                if pace is not None and known
                else None,
                "backlog_bytes": round(total(figures, "braidlog_agent_backlog_bytes")),
                "splits": round(total(figures, "braidlog_upload_splits_total")),
                "merges": round(total(figures, "braidlog_upload_merges_total")),
            }
        )
    return {"rows": rows, "knots": knots}
