"""The agent's figures for Prometheus, computed when they are asked for: the hot path only adds to plain integers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kio.schema.index import api_key_map
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from braidlog.cache.neighbours import NeighbourStatistics
from braidlog.writing.sharing import Sharing

if TYPE_CHECKING:
    from braidlog.agent.agent import Agent


class AgentMeters(Collector):
    def __init__(self, agent: "Agent") -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        agent = self._agent
        requests = CounterMetricFamily("braidlog_agent_requests", "Kafka requests, by API.", labels=["api"])
        for key, count in agent.dispatcher.requests.items():
            requests.add_metric([api_key_map[key]], count)
        yield requests
        cache = agent.cache.statistics()
        reads = CounterMetricFamily(
            "braidlog_agent_cache_reads", "Block reads, by where they ended.", labels=["result"]
        )
        reads.add_metric(["hit"], cache.hits)
        reads.add_metric(["miss"], cache.misses)
        reads.add_metric(["shared"], cache.shared)
        yield reads
        if agent.zone_cache is not None:
            yield from _neighbour_figures(agent.zone_cache.statistics())
        batcher = agent.batcher_statistics()
        for name, text, value in (
            ("cache_bytes", "Object data held in memory.", cache.size_bytes),
            ("connections", "Open client connections.", agent.dispatcher.connections),
            ("request_memory_bytes", "Requests held until they are answered.", agent.memory.used_bytes),
            (
                "connections_waiting_for_memory",
                "Connections that are not read for want of memory.",
                agent.memory.waiting,
            ),
            ("response_memory_bytes", "Fetched records held until they are sent.", agent.answer_memory.used_bytes),
            ("fetches_waiting_for_memory", "Fetches that wait for memory.", agent.answer_memory.waiting),
            ("backlog_bytes", "Records that wait for an upload.", batcher.backlog_bytes),
            ("uploads_in_flight", "Uploads under way.", batcher.drafts_in_flight),
            ("node_id", "This agent's node id.", agent.node_id),
            ("write_epoch", "The write epoch that new objects carry.", agent.session.write_epoch),
        ):
            yield GaugeMetricFamily(f"braidlog_agent_{name}", text, value=value)
        if agent.sharing is not None:
            yield from _sharing_figures(agent.sharing)
        yield CounterMetricFamily(
            "braidlog_agent_feed_reloads", "Times the view was loaded whole.", agent.follower.reloads
        )
        yield from agent.journal.figures()
        yield from _ripcord_figures(agent)
        yield from self._bills()

    def _bills(self) -> Iterator[Metric]:
        """Each PUT's price is shared out over the topics in the object, by bytes."""
        uploaded = CounterMetricFamily("braidlog_upload_bytes", "Record bytes uploaded, by topic.", labels=["topic"])
        spent = CounterMetricFamily("braidlog_upload_usd", "What uploads have cost so far, by topic.", labels=["topic"])
        projected = GaugeMetricFamily(
            "braidlog_upload_usd_month_projection",
            "What a month of uploads costs at the pace of the last minutes, by topic.",
            labels=["topic"],
        )
        agent = self._agent
        for topic, bill in agent.topic_bills.bills(agent.clock.monotonic_s()).items():
            uploaded.add_metric([topic], bill.upload_bytes)
            spent.add_metric([topic], bill.usd)
            projected.add_metric([topic], bill.usd_month)
        yield from (uploaded, spent, projected)


def _neighbour_figures(figures: NeighbourStatistics) -> Iterator[Metric]:
    for name, text, value in (
        ("asked", "Reads that another agent of the zone answered.", figures.asked),
        ("around", "Reads that it did not answer, and that went to the store.", figures.around),
        ("served", "Reads answered for other agents of the zone.", figures.served),
    ):
        yield CounterMetricFamily(f"braidlog_agent_zone_cache_{name}", text, value)


def _ripcord_figures(agent: "Agent") -> Iterator[Metric]:
    reachability, ripcord, admission = agent.reachability, agent.ripcord, agent.admission
    for name, text, gauge in (
        ("control_away", "Whether the control plane is away.", int(reachability.is_away)),
        ("control_away_seconds", "How long it has been away by now.", reachability.away_s),
        ("journals_all", "Whether all topics are journaled.", int(ripcord.journals_all)),
        ("returning", "Whether journals of an outage are still being replayed.", int(ripcord.state == "returning")),
        ("held_requests", "Writes that wait for their partition to leave the journal.", agent.routing.held),
    ):
        yield GaugeMetricFamily(f"braidlog_ripcord_{name}", text, value=gauge)
    for name, text, count in (
        ("outages", "Times that the control plane was away.", reachability.outages),
        ("outage_seconds", "How long it was away altogether, in outages that are over.", reachability.away_s_total),
        ("refused_writes", "Batches refused because the control plane was away.", admission.refused_writes),
        ("refused_reads", "Fetches refused because it was away.", admission.refused_reads),
        ("throttled_answers", "Answers that told a client to wait before it tries again.", admission.shaped),
        ("producer_id_blocks", "Blocks of producer ids claimed in the bucket.", agent.producer_ids.blocks_claimed),
        ("snapshots_written", "Times that this agent wrote the agents' snapshot.", ripcord.snapshots.writes),
    ):
        yield CounterMetricFamily(f"braidlog_ripcord_{name}", text, count)


def _sharing_figures(sharing: Sharing) -> Iterator[Metric]:
    figures = sharing.statistics
    yield GaugeMetricFamily("braidlog_upload_groups", "Groups that the agent's shards form now.", value=figures.groups)
    for name, text, value in (
        ("splits", "Groups that this shard split.", figures.splits),
        ("merges", "Groups that this shard merged.", figures.merges),
        ("pulls", "Objects that this shard made of what its group held.", figures.pulls),
        ("pulled_bytes", "Bytes in these.", figures.pulled_bytes),
        ("locks", "Times that this shard took a group's lock.", figures.locks),
        ("locks_missed", "Times that it found the lock taken.", figures.locks_missed),
    ):
        yield CounterMetricFamily(f"braidlog_upload_{name}", text, value)
