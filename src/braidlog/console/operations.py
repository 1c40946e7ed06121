"""The pages of those who run the cluster: overview, agents, transactions, jobs."""

from datetime import UTC, datetime
from typing import Any

from braidlog.clients.cluster_status import cluster_status, describe_cluster
from braidlog.clients.errors import CommandError
from braidlog.clients.kafka_call import call
from braidlog.console.desk import Arguments, Desk, page_of
from braidlog.console.figures import total
from braidlog.console.load import history, load_now
from braidlog.control.interface import ControlPlane, JobListing, ListJobs, RequestCompaction
from braidlog.runtime.quantities import Address

CALL_TIMEOUT_S = 10.0
LIST_TRANSACTIONS, LIST_VERSION = 66, 1
DESCRIBE_TRANSACTIONS, DESCRIBE_VERSION = 65, 0


async def overview(desk: Desk, _arguments: Arguments) -> dict[str, Any]:
    """Give the state of the cluster, its load, and what is wrong."""
    desk.sampler.look()
    status = cluster_status(await desk.cluster.plane(describe_cluster), desk.clock.wall_ms())
    load = load_now(desk)
    return {**status, "load": load, "history": history(desk), "findings": _findings(desk, status, load)}


def _findings(desk: Desk, status: dict[str, Any], load: dict[str, Any]) -> list[dict[str, str]]:
    """Say what is wrong, and what to do about it."""
    found = [{"finding": text, "advice": "Look at the agent's log."} for text in status["troubles"]]
    found += [
        {
            "finding": f"the metrics at {place} do not answer",
            "advice": "Let the agent listen where this console can reach it: metrics_listen=HOST:PORT.",
        }
        for place in load.get("silent", [])
    ]
    if desk.sampler.facts and not any(each.metrics for each in desk.sampler.facts):
        found.append({"finding": "no agent serves metrics", "advice": "Set metrics_listen=HOST:PORT."})
    if status["jobs"].get("failed"):
        found.append({"finding": f"{status['jobs']['failed']} jobs have failed", "advice": "The page Jobs says why."})
    if status["copy"] == "none":
        found.append(
            {
                "finding": "the metadata has no copy in the bucket",
                "advice": "Use --metadata bucket:// if the loss of this machine's disk must not matter.",
            }
        )
    return found


async def agents(desk: Desk, _arguments: Arguments) -> dict[str, Any]:
    """Give every agent with its zone, its caches and its budget, and the stores."""
    desk.sampler.look()
    status = cluster_status(await desk.cluster.plane(describe_cluster), desk.clock.wall_ms())
    facts = {each.node_id: each for each in await desk.cluster.facts()}
    last = desk.sampler.last
    rows = []
    for agent in status["agents"]:
        own = facts.get(agent["node_id"])
        figures = last.by_place.get(own.metrics, {}) if own is not None and last is not None else {}
        hits = total(figures, "braidlog_agent_cache_reads_total", result="hit")
        reads = total(figures, "braidlog_agent_cache_reads_total")
        rows.append(
            {
                **agent,
                "connections": round(total(figures, "braidlog_agent_connections")) if figures else None,
                "cache_bytes": round(total(figures, "braidlog_agent_cache_bytes")) if figures else None,
                "cache_hits": round(hits / reads, 3) if reads else None,
                "memory_bytes": round(total(figures, "process_resident_memory_bytes")) if figures else None,
                "budget_usd_month": own.budget_usd_month if own is not None else None,
                "shards": own.shards if own is not None else None,
                "control": "away" if total(figures, "braidlog_ripcord_control_away") else "there",
                "outages": round(total(figures, "braidlog_ripcord_outages_total")) if figures else None,
                "metrics": own.metrics if own is not None else None,
            }
        )
    return {
        "rows": rows,
        "stores": [{"store": status["store"], "copy_of_metadata": status["copy"], "copy_age_s": status["copy_age_s"]}],
        "control_planes": [
            {"name": status["active"], "state": "active", "since": status["active_since"]},
            *({"name": each["name"], "state": "stands by", "since": None} for each in status["standbys"]),
        ],
    }


async def transactions(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """Give the transactions that are known, those that are open first."""
    brokers = await desk.cluster.brokers()
    found = await desk.cluster.run(_list_transactions, list(brokers.values()))
    names, page = page_of(sorted(found, key=lambda name: (not found[name]["is_open"], name)), arguments)
    rows = [found[name] for name in names]
    # Only what is open: the codec cannot read the start of a transaction that has none.
    described = await desk.cluster.run(_describe_transactions, [row for row in rows if row["is_open"]])
    now_ms = desk.clock.wall_ms()
    for row in rows:
        row.update(described.get(row["transactional_id"], {}))
        row.pop("broker", None)
        started_ms = row.pop("started_ms", -1)
        row["open_s"] = max(0, now_ms - started_ms) // 1000 if row["is_open"] and started_ms >= 0 else None
        row["hangs"] = bool(row["open_s"] is not None and row["open_s"] * 1000 > row.get("timeout_ms", 60_000))
    return {"rows": rows, **page}


def _list_transactions(brokers: list[Address]) -> dict[str, dict[str, Any]]:
    from braidlog.wire.calls import request_types

    types = request_types(LIST_TRANSACTIONS, LIST_VERSION)
    request = types.ListTransactionsRequest(state_filters=(), producer_id_filters=())
    found: dict[str, dict[str, Any]] = {}
    for broker in brokers:
        answer = call(broker, LIST_TRANSACTIONS, LIST_VERSION, request)
        for each in answer.transaction_states:
            found[each.transactional_id] = {
                "transactional_id": each.transactional_id,
                "state": each.transaction_state,
                "producer_id": each.producer_id,
                "is_open": each.transaction_state in {"Ongoing", "PrepareCommit", "PrepareAbort"},
                "broker": broker,
            }
    return found


def _describe_transactions(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    from kio.serial.errors import SerialError

    from braidlog.wire.calls import request_types

    types = request_types(DESCRIBE_TRANSACTIONS, DESCRIBE_VERSION)
    by_broker: dict[Address, list[str]] = {}
    for row in rows:
        by_broker.setdefault(row["broker"], []).append(row["transactional_id"])
    found = {}
    for broker, names in by_broker.items():
        request = types.DescribeTransactionsRequest(transactional_ids=tuple(names))
        try:
            answer = call(broker, DESCRIBE_TRANSACTIONS, DESCRIBE_VERSION, request)
        except SerialError:  # one of them has just ended
            continue
        for each in answer.transaction_states:
            if each.error_code:
                continue
            found[each.transactional_id] = {
                "timeout_ms": _ms(each.transaction_timeout),
                "started_ms": _ms(each.transaction_start_time) if each.transaction_start_time is not None else -1,
                "partitions": [f"{topic.topic}/{number}" for topic in each.topics for number in topic.partitions],
            }
    return found


def _ms(value: Any) -> int:
    """Give milliseconds for what the schema has as a number, a duration or a time."""
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return round(value.total_seconds() * 1000) if hasattr(value, "total_seconds") else int(value)


async def jobs(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """Give jobs, open ones first, then the newest that are over."""
    state = arguments.text("state")

    async def ask(plane: ControlPlane) -> list[JobListing]:
        return (await plane.list_jobs(ListJobs([], [state] if state else []), timeout_s=CALL_TIMEOUT_S)).jobs

    rows = {f"{each.subject} {each.kind} {each.job_id}": _job_row(each) for each in await desk.cluster.plane(ask)}
    names, page = page_of(list(rows), arguments)
    return {"rows": [rows[name] for name in names], **page}


def _job_row(job: JobListing) -> dict[str, Any]:
    ended = job.finished_ms >= 0 and job.started_ms >= 0
    return {
        "job": job.job_id,
        "kind": job.kind,
        "state": job.state,
        "subject": job.subject,
        "bytes_in": job.bytes_in,
        "bytes_out": job.bytes_out if job.state == "done" else None,
        "extents_in": job.extents_in,
        "extents_out": job.extents_out if job.state == "done" else None,
        "attempts": job.attempts,
        "worker": job.worker or None,
        "created": datetime.fromtimestamp(job.created_ms / 1000, UTC).isoformat(timespec="seconds"),
        "seconds": round((job.finished_ms - job.started_ms) / 1000, 1) if ended else None,
        "detail": job.detail or None,
    }


async def start_job(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """Compact a topic now."""
    topic = arguments.text("compact")

    async def ask(plane: ControlPlane) -> Any:
        return await plane.request_compaction(RequestCompaction(topic), timeout_s=CALL_TIMEOUT_S)

    answer = await desk.cluster.plane(ask)
    if answer.error_code:
        raise CommandError(answer.error_message, help="The topic's cleanup.policy must be compact.")
    if not answer.job_ids:
        return {"done": f"{topic}: nothing to compact now"}
    return {"done": f"{topic}: compaction asked for, {len(answer.job_ids)} jobs", "jobs": list(answer.job_ids)}
