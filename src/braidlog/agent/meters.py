"""The agent's metrics for Prometheus, one collector for each part of the agent.

They are computed when Prometheus asks for them: the hot path only adds to plain integers.
"""

from collections.abc import Iterator

from kio.schema.index import api_key_map
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from braidlog.agent.apis.dispatch import Dispatcher
from braidlog.agent.cluster.follower import FeedFollower
from braidlog.agent.cluster.session import AgentSession
from braidlog.agent.connections.open_connections import OpenConnections
from braidlog.agent.entrance.logins import Logins
from braidlog.agent.read_path.zone_cache import ZoneCache
from braidlog.agent.ripcord.admission import Admission
from braidlog.agent.ripcord.producer_ids import ProducerIds
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.agent.ripcord.ripcord import Ripcord
from braidlog.cache.blocks import BlockCache
from braidlog.cache.neighbours import NeighbourStatistics
from braidlog.cost.topics import TopicMeter
from braidlog.jobs.worker import Worker
from braidlog.runtime.clock import Clock
from braidlog.writing.journal.meters import journal_figures
from braidlog.writing.path import WritePath
from braidlog.writing.shards.scheduler import ShardScheduler


class RequestsMeter(Collector):
    """Requests, connections and the memory that they hold."""

    def __init__(self, dispatcher: Dispatcher, connections: OpenConnections, logins: Logins) -> None:
        self._dispatcher = dispatcher
        self._connections = connections
        self._logins = logins

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("braidlog_agent_requests", "Kafka requests, by API.", labels=["api"])
        for key, count in self._dispatcher.requests.items():
            requests.add_metric([api_key_map[key]], count)
        yield requests
        logins = CounterMetricFamily(
            "braidlog_agent_logins", "Logins of clients, by mechanism and outcome.", labels=["mechanism", "outcome"]
        )
        for outcome, counts in (("success", self._logins.successes), ("failure", self._logins.failures)):
            for mechanism, count in counts.items():
                logins.add_metric([mechanism, outcome], count)
        yield logins
        connections = self._connections
        yield from connections.meters.collect()
        request_memory, response_memory = connections.request_memory, connections.response_memory
        for name, text, value in (
            ("connections", "Open client connections.", len(connections)),
            ("request_memory_bytes", "Bytes of requests held until they are answered.", request_memory.used_bytes),
            (
                "connections_waiting_for_memory",
                "Connections that are not read, because request memory is full.",
                request_memory.waiting,
            ),
            ("response_memory_bytes", "Bytes of fetched records held until they are sent.", response_memory.used_bytes),
            (
                "fetches_waiting_for_memory",
                "Fetches that wait, because response memory is full.",
                response_memory.waiting,
            ),
        ):
            yield _gauge(name, text, value)


class CacheMeter(Collector):
    """Blocks in memory, and those that agents of the zone read for each other."""

    def __init__(self, cache: BlockCache, zone_cache: ZoneCache | None) -> None:
        self._cache = cache
        self._zone_cache = zone_cache

    def collect(self) -> Iterator[Metric]:
        cache = self._cache.statistics()
        reads = CounterMetricFamily(
            "braidlog_agent_cache_reads", "Block reads, by where they ended.", labels=["result"]
        )
        reads.add_metric(["hit"], cache.hits)
        reads.add_metric(["miss"], cache.misses)
        reads.add_metric(["shared"], cache.shared)
        yield reads
        yield _gauge("cache_bytes", "Object data held in memory.", cache.size_bytes)
        if self._zone_cache is not None:
            yield from _neighbour_figures(self._zone_cache.statistics())


class UploadsMeter(Collector):
    """Uploads, the groups of shards that share them, and their price by topic."""

    def __init__(self, write_path: WritePath, topic_bills: TopicMeter, clock: Clock) -> None:
        self._write_path = write_path
        self._topic_bills = topic_bills
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        batcher = self._write_path.batcher_statistics()
        yield _gauge("backlog_bytes", "Bytes of records that wait for an upload.", batcher.backlog_bytes)
        yield _gauge("uploads_in_flight", "Uploads under way.", batcher.drafts_in_flight)
        # The second scheduler, if there is one, is that of the journal.
        for name, scheduler in zip(("upload", "journal_upload"), self._write_path.shards, strict=False):
            yield from _shard_figures(f"braidlog_{name}", scheduler)
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
        for topic, bill in self._topic_bills.bills(self._clock.monotonic_s()).items():
            uploaded.add_metric([topic], bill.upload_bytes)
            spent.add_metric([topic], bill.usd)
            projected.add_metric([topic], bill.usd_month)
        yield from (uploaded, spent, projected)


class ClusterMeter(Collector):
    """This agent's place in the cluster, and its view of it."""

    def __init__(self, session: AgentSession, follower: FeedFollower) -> None:
        self._session = session
        self._follower = follower

    def collect(self) -> Iterator[Metric]:
        yield _gauge("node_id", "This agent's node id.", self._session.node_id)
        yield _gauge("write_epoch", "The write epoch that new objects carry.", self._session.write_epoch)
        yield CounterMetricFamily(
            "braidlog_agent_feed_reloads",
            "Times that the agent loaded the whole view of the cluster again.",
            self._follower.reloads,
        )


class JournalMeter(Collector):
    """The journal's write path, and replays of journals that this agent did."""

    def __init__(self, write_path: WritePath, replays: Worker) -> None:
        self._write_path = write_path
        self._replays = replays

    def collect(self) -> Iterator[Metric]:
        yield from journal_figures(self._write_path.journal)
        yield _replay_figures(self._replays)


class RipcordMeter(Collector):
    """Outages of the control plane, and how this agent gets through them."""

    def __init__(
        self,
        reachability: Reachability,
        ripcord: Ripcord,
        admission: Admission,
        producer_ids: ProducerIds,
        write_path: WritePath,
    ) -> None:
        self._reachability = reachability
        self._ripcord = ripcord
        self._admission = admission
        self._producer_ids = producer_ids
        self._write_path = write_path

    def collect(self) -> Iterator[Metric]:
        reachability, ripcord, admission = self._reachability, self._ripcord, self._admission
        for name, text, gauge in (
            ("control_away", "Whether the control plane is away.", int(reachability.is_away)),
            ("control_away_seconds", "How long the control plane has been away by now.", reachability.away_s),
            ("journals_all", "Whether this agent journals all topics.", int(ripcord.journals_all)),
            ("returning", "Whether journals of an outage are still being replayed.", int(ripcord.state == "returning")),
            (
                "held_requests",
                "Writes that wait for their partition to leave the journal.",
                self._write_path.waiting_count,
            ),
        ):
            yield GaugeMetricFamily(f"braidlog_ripcord_{name}", text, value=gauge)
        for name, text, count in (
            ("outages", "Times that the control plane was away.", reachability.outages),
            (
                "outage_seconds",
                "How long the control plane was away in all outages that are over.",
                reachability.away_s_total,
            ),
            ("refused_writes", "Batches refused because the control plane was away.", admission.refused_writes),
            ("refused_reads", "Fetches refused because the control plane was away.", admission.refused_reads),
            ("throttled_answers", "Answers that told a client to wait before it tries again.", admission.shaped),
            ("producer_id_blocks", "Blocks of producer ids claimed in the bucket.", self._producer_ids.blocks_claimed),
            ("snapshots_written", "Times that this agent wrote the agents' snapshot.", ripcord.snapshots.writes),
        ):
            yield CounterMetricFamily(f"braidlog_ripcord_{name}", text, count)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"braidlog_agent_{name}", text, value=value)


def _neighbour_figures(figures: NeighbourStatistics) -> Iterator[Metric]:
    for name, text, value in (
        ("asked", "Block reads that another agent of the zone answered.", figures.asked),
        ("around", "Block reads that another agent was asked for and did not answer; the store did.", figures.around),
        ("served", "Block reads that this agent answered for others of the zone.", figures.served),
    ):
        yield CounterMetricFamily(f"braidlog_agent_zone_cache_{name}", text, value)


def _replay_figures(replays: Worker) -> Metric:
    figures = replays.statistics()
    jobs = CounterMetricFamily(
        "braidlog_journal_jobs",
        "Scans and replays of journals that this agent did, by outcome.",
        labels=["outcome"],
    )
    for outcome, count in (("done", figures.done), ("refused", figures.refused), ("failed", figures.failed)):
        jobs.add_metric([outcome], count)
    return jobs


def _shard_figures(name: str, scheduler: ShardScheduler) -> Iterator[Metric]:
    figures = scheduler.statistics
    for what, text, place in (
        ("groups", "Groups that the agent's shards form now.", figures.groups),
        ("shard", "The number of this shard.", figures.shard),
        ("group", "The group of this shard: the number of the group's first shard.", figures.group),
    ):
        yield GaugeMetricFamily(f"{name}_{what}", text, value=place)
    for what, text, value in (
        ("splits", "Groups that this shard split.", figures.splits),
        ("merges", "Groups that this shard merged.", figures.merges),
        ("pulls", "Objects that this shard made of what its group held.", figures.pulls),
        ("pulled_bytes", "Bytes of the objects that this shard made of what its group held.", figures.pulled_bytes),
        ("locks", "Times that this shard took a group's lock.", figures.locks),
        ("locks_missed", "Times that this shard found a group's lock taken.", figures.locks_missed),
    ):
        yield CounterMetricFamily(f"{name}_{what}", text, value)
