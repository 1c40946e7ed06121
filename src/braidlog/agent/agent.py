"""Serves Kafka clients: turns records into objects, and objects into records.

`Agent` assembles the parts and starts and stops them. It holds no state that matters: it can load its view of the
cluster again, and clients send again what it has not acknowledged.
"""

import asyncio

import structlog

from braidlog.agent.apis.cluster.services import ClusterServices
from braidlog.agent.apis.configs.services import ConfigServices
from braidlog.agent.apis.converter import Converter
from braidlog.agent.apis.dispatch import API_VERSIONS, Dispatcher, RawHandlers
from braidlog.agent.apis.groups.services import GroupServices
from braidlog.agent.apis.records.api_00_produce import Produce
from braidlog.agent.apis.records.api_01_fetch import Fetch, FetchServices
from braidlog.agent.apis.records.batch_work import BatchWork
from braidlog.agent.apis.records.services import RecordServices
from braidlog.agent.apis.security.services import SecurityServices
from braidlog.agent.apis.topics.api_03_metadata import Metadata
from braidlog.agent.apis.topics.services import TopicServices
from braidlog.agent.apis.transactions.services import TransactionServices
from braidlog.agent.cluster.follower import FeedFollower
from braidlog.agent.cluster.session import AgentSession
from braidlog.agent.cluster.store_owner import check_store_owner
from braidlog.agent.cluster.view import ClusterView
from braidlog.agent.connections.connection import KafkaConnection
from braidlog.agent.connections.open_connections import OpenConnections
from braidlog.agent.connections.request_meters import RequestMeters
from braidlog.agent.entrance.listening import Listening
from braidlog.agent.entrance.logins import Logins
from braidlog.agent.entrance.users import Users
from braidlog.agent.journal_jobs import JournalExecutor
from braidlog.agent.meters import CacheMeter, ClusterMeter, JournalMeter, RequestsMeter, RipcordMeter, UploadsMeter
from braidlog.agent.read_path.fetch_sessions import FetchSessions
from braidlog.agent.read_path.partition_answers import ReadServices
from braidlog.agent.read_path.reader import Reader
from braidlog.agent.read_path.ticks import Ticks
from braidlog.agent.read_path.zone_cache import ZoneCache
from braidlog.agent.ripcord.admission import Admission
from braidlog.agent.ripcord.guarded import guarded
from braidlog.agent.ripcord.producer_ids import ProducerIds
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.agent.ripcord.replay_wait import ReplayWait
from braidlog.agent.ripcord.ripcord import Ripcord
from braidlog.agent.security_rules import authorizer_rules, login_rules
from braidlog.cache.blocks import BlockCache
from braidlog.cache.neighbours import Neighbours
from braidlog.control.interface import REPLAY, SCAN, ControlPlane
from braidlog.cost.prices import PRICES, price_for
from braidlog.cost.topics import TopicMeter
from braidlog.jobs.worker import RoundLimits, Worker
from braidlog.objects.owner import WrongStore
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import ControlUnavailable, DeadlineExceeded
from braidlog.runtime.metrics import Metrics
from braidlog.runtime.settings import AgentSettings
from braidlog.runtime.tasks import TaskGroup
from braidlog.runtime.turns import Turns
from braidlog.security.rights import Authorizer
from braidlog.writing.packing import Writer
from braidlog.writing.path import Components, WritePath
from braidlog.writing.shards.link import ShardLinks

log = structlog.get_logger(__name__)

DRAIN_TIMEOUT_S = 10.0
VIEW_AGE_S_MAX = 30.0
"""An agent whose view was confirmed longer ago is not ready."""
REPLAYS_AT_ONCE = 2
"""More than one, so that a scan need not wait for a long replay."""


class Agent:
    """One agent, or one shard of it.

    `start` makes it reachable; `stop` answers what was asked and leaves.
    """

    def __init__(
        self,
        control: ControlPlane,
        store: Store,
        clock: Clock,
        entropy: Entropy,
        settings: AgentSettings,
        metrics: Metrics,
        links: ShardLinks | None = None,
    ) -> None:
        """With `links`, this is one shard of several that share their uploads."""
        self.settings = settings
        self.incarnation = incarnation = entropy.token(8).hex()
        self._store = store
        self._clock = clock
        self._entropy = entropy

        # The control plane, and what this agent knows of the cluster.
        self.reachability = reachability = Reachability(clock, settings.ripcord_after_ms / 1000)
        self._control = control = guarded(control, reachability)
        replay_wait = ReplayWait(control, reachability, incarnation)
        self.view = view = ClusterView()
        self._follower = FeedFollower(control, view, clock, entropy, incarnation)
        self._session = AgentSession(
            control,
            clock,
            entropy,
            incarnation,
            settings.zone,
            call_timeout_s=settings.ripcord_after_ms / 1000,
            journals=settings.ripcord != "off",
            on_heard=replay_wait.heard,
        )
        self.ripcord = Ripcord(
            settings.ripcord, replay_wait, reachability, self._session, view, store, clock, entropy.fork("ripcord")
        )

        # Connections.
        self._listening = Listening(settings, clock)
        users = Users(view, entropy.fork("users"), settings.sasl_users_file)
        self.logins = Logins(users, login_rules(settings), clock, entropy.fork("logins"))
        self.authorizer = Authorizer(view.acls, authorizer_rules(settings))
        turns = Turns(clock)
        meters = RequestMeters(API_VERSIONS)
        self.connections = OpenConnections(
            clock,
            turns,
            meters,
            self.authorizer,
            per_address_max=settings.max_connections_per_ip,
            request_bytes_max=settings.memory_budget_bytes,
            response_bytes_max=settings.response_budget_bytes,
        )

        # The read path.
        has_neighbours = settings.cache_listen is not None
        neighbours = Neighbours(clock=clock, entropy=entropy.fork("zone cache")) if has_neighbours else None
        self._cache = cache = BlockCache(store, bytes_max=settings.cache_bytes, neighbours=neighbours)
        self.zone_cache: ZoneCache | None = None
        if neighbours is not None:
            self.zone_cache = ZoneCache(neighbours, cache, view, self._session, settings)
        self.reader = Reader(control, cache, call_timeout_s=settings.commit_timeout_ms / 1000)

        # The write path, and the jobs that finish what other write paths have left behind.
        price = PRICES.get(settings.store_price) or price_for(store.url)
        self._topic_bills = TopicMeter(price, started_s=clock.monotonic_s())
        self.write_path = self._build_write_path(links)
        reachability.on_back.append(self.write_path.journal.ends.tell)
        self.replays = self._build_replays()

        # Requests.
        self._batch_work = BatchWork(turns, expanded_bytes_max=settings.batch_expanded_bytes_max)
        self._producer_ids = ProducerIds(store, clock, entropy.fork("producer ids"), incarnation=incarnation)
        self._admission = Admission(
            reachability, self.ripcord, self.connections.request_memory, entropy.fork("admission")
        )
        self.dispatcher = self._build_dispatcher(turns, meters)

        self._background = TaskGroup("agent")
        self._heartbeats: asyncio.Task[None] | None = None
        self._ripcord_loop: asyncio.Task[None] | None = None
        self.port = settings.listen.port
        self._register_meters(metrics)

    def _build_write_path(self, links: ShardLinks | None) -> WritePath:
        session = self._session
        return WritePath(
            Components(self._control, self._store, self._clock, self._entropy),
            self.settings,
            Writer(self.incarnation, self.settings.zone, lambda: session.write_epoch),
            self.view,
            self.ripcord,
            self._topic_bills,
            self._cache.insert,
            links,
        )

    def _build_replays(self) -> Worker:
        control, store, clock, entropy = self._control, self._store, self._clock, self._entropy
        return Worker(
            control,
            JournalExecutor(control, store, clock, entropy.fork("replaying"), incarnation=self.incarnation),
            clock,
            entropy.fork("replay jobs"),
            name=f"agent {self.incarnation}",
            kinds=[SCAN, REPLAY],
            limits=RoundLimits(at_once=REPLAYS_AT_ONCE),
        )

    def _build_dispatcher(self, turns: Turns, meters: RequestMeters) -> Dispatcher:
        """Give each handler what it uses.

        `apis.registry` says which API gets which services.
        """
        control, view, session, settings = self._control, self.view, self._session, self.settings
        reachability, admission, clock = self.reachability, self._admission, self._clock
        topics = TopicServices(control, view, session, settings)
        services = (
            RecordServices(control, view, self.reader, self._batch_work),
            GroupServices(control, view, session, reachability),
            TransactionServices(control, view, session, reachability, self._producer_ids),
            topics,
            ConfigServices(control, view, session, settings),
            ClusterServices(view, clock),
            SecurityServices(control, view, self.authorizer),
        )
        tasks = TaskGroup("requests")
        converter = Converter()
        fetches = FetchServices(
            ReadServices(view, control, self.reader, settings.zone),
            FetchSessions(self._entropy.fork("fetch sessions")),
            Ticks(),
            self.connections,
            admission,
            reachability,
            clock,
            tasks,
        )
        raw = RawHandlers(
            Produce(view, self.write_path, self._batch_work, admission, reachability, clock, turns, converter),
            Fetch(fetches, turns, converter),
            Metadata(topics, reachability, turns),
            self.logins,
        )
        return Dispatcher(raw, services, admission, reachability, turns, meters, tasks, converter)

    def _register_meters(self, metrics: Metrics) -> None:
        for meters in (
            RequestsMeter(self.dispatcher, self.connections, self.logins),
            CacheMeter(self._cache, self.zone_cache),
            UploadsMeter(self.write_path, self._topic_bills, self._clock),
            ClusterMeter(self._session, self._follower),
            JournalMeter(self.write_path, self.replays),
            RipcordMeter(self.reachability, self.ripcord, self._admission, self._producer_ids, self.write_path),
        ):
            metrics.register(meters)

    @property
    def node_id(self) -> int:
        return self._session.node_id

    @property
    def is_ready(self) -> bool:
        """Whether clients can be served.

        That needs a registered agent with a view that the control plane confirmed lately, or Ripcord in an outage.
        """
        if self.ripcord.mode != "off" and self.reachability.is_away:
            return self._listening.is_serving
        heard_s_ago = self._clock.monotonic_s() - self._follower.last_heard_s
        return self._listening.is_serving and self._session.is_registered and heard_s_ago < VIEW_AGE_S_MAX

    async def start(self) -> None:
        """Open the port, join the cluster and begin to serve clients."""
        # Bound before the agent registers, so that no client is sent to a port that is not open.
        listening = self._listening
        await listening.open(lambda entrance: KafkaConnection(self.connections, self.dispatcher, entrance))
        self.port = next(iter(listening.ports.values()))
        self._session.listeners = addresses = listening.addresses
        cache_address = await self.zone_cache.start() if self.zone_cache is not None else ""
        host, port = next(iter(addresses.values()))
        try:
            await self._join(host, port, cache_address)
        except BaseException:
            listening.close()
            if self.zone_cache is not None:
                await self.zone_cache.close()
            raise
        if self.zone_cache is not None:
            self._background.spawn(self.zone_cache.follow())
        self._background.spawn(self._follower.run())
        self._heartbeats = self._background.spawn(self._session.run())
        self._background.spawn(self.replays.run())
        if self.ripcord.mode != "off":
            self._ripcord_loop = self._background.spawn(self.ripcord.run())
        self.write_path.start()
        if listening.certificates is not None:
            self._background.spawn(listening.certificates.follow())
        await listening.serve()
        log.info("agent started", node_id=self.node_id, port=self.port, incarnation=self.incarnation)

    async def _join(self, host: str, port: int, cache_address: str) -> None:
        """Register and load the view, or start alone if Ripcord allows it.

        It starts alone only if there is no control plane.
        """
        try:
            await self._session.register(host, port, cache_address)
            await self._follower.load()
            await check_store_owner(self._store, self.view.cluster_id, self._clock)
        except WrongStore:
            await self._session.leave()
            raise
        except (ControlUnavailable, DeadlineExceeded):
            if self.ripcord.mode == "off":
                raise
            await self.ripcord.start_alone(host, port, cache_address)

    async def stop(self) -> None:
        """Leave the cluster, and answer what was accepted.

        No more requests are accepted, and clients go elsewhere.
        """
        self._listening.close()
        self.connections.begin_drain()
        self.view.wake_fetches()
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        await self._session.leave()
        if self._ripcord_loop is not None:
            self._ripcord_loop.cancel()
        await self.ripcord.withdraw()
        await self._batch_work.tasks.wait_all()
        await self.write_path.flush()
        await self.connections.finish_drain(DRAIN_TIMEOUT_S)
        await self.dispatcher.close()
        await self.write_path.finish(DRAIN_TIMEOUT_S)
        await self._background.cancel_all()
        await self._batch_work.close()
        await self._cache.close()
        if self.zone_cache is not None:
            await self.zone_cache.close()
        log.info("agent stopped", node_id=self.node_id)
