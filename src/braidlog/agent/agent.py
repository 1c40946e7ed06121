"""An agent: takes Kafka clients' connections, and turns their records into objects and objects into their records.

It holds no state that matters. What it knows of the cluster it can load again, and what it has not acknowledged its
clients send again.
"""

import asyncio
import math

import structlog

from braidlog.agent.ack_order import AckOrder
from braidlog.agent.billing import Billing
from braidlog.agent.connection import KafkaConnection
from braidlog.agent.dispatch import Dispatcher
from braidlog.agent.fetch_sessions import FetchSessions
from braidlog.agent.follower import FeedFollower
from braidlog.agent.journal_path import JournalPath
from braidlog.agent.memory import MemoryBudget
from braidlog.agent.meters import AgentMeters
from braidlog.agent.reading import Reader
from braidlog.agent.ripcord.admission import Admission
from braidlog.agent.ripcord.guarded import guarded
from braidlog.agent.ripcord.producer_ids import ProducerIds
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.agent.ripcord.ripcord import Ripcord
from braidlog.agent.routing import Routing
from braidlog.agent.sequencing import Sequencing
from braidlog.agent.session import AgentSession
from braidlog.agent.ticks import Ticks
from braidlog.agent.unsequenced import Partition
from braidlog.agent.view import ClusterView
from braidlog.agent.zone_cache import ZoneCache
from braidlog.cache.blocks import BlockCache
from braidlog.control.interface import ControlPlane, FenceAgent
from braidlog.cost.prices import PRICES, price_for, puts_per_s_for_budget
from braidlog.cost.topics import TopicMeter
from braidlog.objects.owner import WrongStore, read_owner
from braidlog.objects.store import NotFound, Store, StoreError
from braidlog.records.batch import TRANSACTIONAL_BIT
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, ControlUnavailable, DeadlineExceeded, InvalidSetting
from braidlog.runtime.limits import EARLY_UPLOADS_IN_FLIGHT_MAX
from braidlog.runtime.metrics import Metrics
from braidlog.runtime.settings import AgentSettings
from braidlog.runtime.tasks import TaskGroup
from braidlog.scheduling.budget import PutBudget, budget_share
from braidlog.scheduling.closing import CloseThresholds
from braidlog.scheduling.policy import policy_named
from braidlog.writing.arena import Arena
from braidlog.writing.batcher import Batcher, BatcherStatistics
from braidlog.writing.order import Order
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.seat import Seat
from braidlog.writing.setbacks import Setbacks
from braidlog.writing.sharing import Sharing
from braidlog.writing.stage import RequestStage
from braidlog.writing.uploader import Uploader

log = structlog.get_logger(__name__)

EARLY_BURST_S = 2.0
"""The budget saves up this many seconds of early uploads, for writes that come in small bursts."""
DRAIN_TIMEOUT_S = 10.0
OWNER_WAIT_S = 10.0
FENCE_BACKOFF_S_FIRST, FENCE_BACKOFF_S_MAX = 0.1, 5.0
SEQUENCING_SHARE = 1 / 3
"""Of a produce request's time: the rest is for its upload."""


class Agent:
    """Built from its components; `start` makes it reachable, `stop` answers what was asked and leaves."""

    def __init__(
        self,
        control: ControlPlane,
        store: Store,
        clock: Clock,
        entropy: Entropy,
        settings: AgentSettings,
        metrics: Metrics,
        seat: Seat | None = None,
    ) -> None:
        """With a `seat`, this is one shard of several that share their uploads."""
        self.reachability = Reachability(clock, settings.ripcord_after_ms / 1000)
        self.control = control = guarded(control, self.reachability)
        self.store = store
        self.clock = clock
        self.entropy = entropy
        self.settings = settings
        self.incarnation = entropy.token(8).hex()
        self.view = ClusterView()
        self.memory = MemoryBudget(settings.memory_budget_bytes)
        self.answer_memory = MemoryBudget(settings.response_budget_bytes)
        self.zone_cache = ZoneCache(self) if settings.cache_listen is not None else None
        neighbours = self.zone_cache.neighbours if self.zone_cache is not None else None
        self.cache = BlockCache(store, bytes_max=settings.cache_bytes, neighbours=neighbours)
        self.reader = Reader(control, self.cache, call_timeout_s=settings.commit_timeout_ms / 1000)
        self.session = AgentSession(
            control,
            clock,
            entropy,
            self.incarnation,
            settings.zone,
            call_timeout_s=settings.ripcord_after_ms / 1000,
            journals=settings.ripcord != "off",
        )
        self.ripcord = Ripcord(
            settings.ripcord,
            control,
            self.reachability,
            self.session,
            self.view,
            store,
            clock,
            entropy.fork("ripcord"),
        )
        self.producer_ids = ProducerIds(store, clock, entropy.fork("producer ids"), incarnation=self.incarnation)
        self.ticks = Ticks()
        self.fetch_sessions = FetchSessions(entropy.fork("fetch sessions"))
        self.follower = FeedFollower(control, self.view, clock, entropy)
        self.price = PRICES.get(settings.store_price) or price_for(store.url)
        self.topic_bills = TopicMeter(self.price, started_s=clock.monotonic_s())
        self._background = TaskGroup("agent")
        self._uploads = TaskGroup("uploads")
        self.sharing: Sharing | None = None
        self._batcher = self._build_write_path(seat)
        self.journal.unsequenced.on_left = self._left_to_replay
        self.routing = Routing(self.sharing or self._batcher, self.journal, self._journals, self.journal.unsequenced)
        # A producer's batches are on both paths where an outage begins or ends, and answered in order all the same.
        first = AckOrder(self.routing, clock) if settings.ripcord == "auto" else self.routing
        self.write_path: RequestStage = Setbacks(first, clock)
        self.admission = Admission(self)
        self.dispatcher = Dispatcher(self)
        self._server: asyncio.Server | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._ripcord_loop: asyncio.Task[None] | None = None
        self.port = settings.listen.port
        metrics.register(AgentMeters(self))

    @property
    def node_id(self) -> int:
        return self.session.node_id

    @property
    def zone(self) -> str:
        return self.settings.zone

    @property
    def is_ready(self) -> bool:
        """Whether clients can be served: registered, and a view that the control plane confirmed lately; or able to do
        without it."""
        if self.ripcord.mode != "off" and self.reachability.is_away:
            return self._server is not None
        heard_s_ago = self.clock.monotonic_s() - self.follower.last_heard_s
        return self._server is not None and self.session.is_registered and heard_s_ago < 30.0

    def batcher_statistics(self) -> BatcherStatistics:
        return self.sharing.batcher_statistics() if self.sharing is not None else self._batcher.statistics()

    def _build_write_path(self, seat: Seat | None) -> Batcher:
        """`(schedule →) batch → order → upload → bill → sequence`, built from its end: a stage knows only the next."""
        settings = self.settings
        arena = Arena(free_bytes_max=settings.memory_budget_bytes)
        sequencing = Sequencing(
            self.control,
            self.clock,
            self.entropy.fork("sequencing"),
            deadline_s=settings.request_timeout_ms / 1000 * SEQUENCING_SHARE,
            tasks=self._uploads,
            take_over=self._journal_instead,
        )
        uploader = Uploader(
            Billing(sequencing, self.topic_bills, self.clock, topic_name=self.topic_name),
            self.store,
            self.clock,
            self.entropy.fork("uploader"),
            incarnation=self.incarnation,
            zone=settings.zone,
            write_epoch=lambda: self.session.write_epoch,
            on_uploaded=self.cache.insert,
            on_finished=lambda draft: (self.sharing or self._batcher).uploaded(draft),
            tasks=self._uploads,
            arena=arena,
        )
        puts_per_s = puts_per_s_for_budget(settings.upload_budget_usd_month, self.price)
        burst = max(1.0, puts_per_s * EARLY_BURST_S) if math.isfinite(puts_per_s) else 1.0
        thresholds = CloseThresholds(
            size_bytes=settings.upload_size_bytes,
            interval_s=settings.upload_interval_ms / 1000,
            in_flight_max=settings.uploads_in_flight_max,
            # Where PUTs cost money the budget bounds early ones; where they do not, one at a time is enough.
            early_in_flight_max=EARLY_UPLOADS_IN_FLIGHT_MAX if math.isfinite(puts_per_s) else 1,
            size_bytes_behind=None if math.isfinite(puts_per_s) else 2 * settings.upload_size_bytes,
        )
        wait_s_max = settings.request_timeout_ms / 1000
        order = Order(uploader)
        shard_count = seat.board.shard_count if seat is not None else 1
        batcher = Batcher(
            order, thresholds, budget_share(puts_per_s, burst, 1, shard_count), self.clock, wait_s_max=wait_s_max
        )
        self.journal = JournalPath(self, thresholds, batcher.budget, arena, self._uploads)
        if seat is not None:
            self.sharing = Sharing(
                seat,
                batcher,
                order,
                uploader,
                policy_named(settings.upload_policy),
                thresholds,
                PutBudget(puts_per_s, burst),
                self.clock,
                self.entropy.fork("sharing"),
                incarnation=self.incarnation,
                fence=self._fence,
                wait_s_max=wait_s_max,
                tasks=self._background,
            )
        return batcher

    async def _fence(self, incarnation: str) -> None:
        """Return when nothing of a shard that died can be sequenced any more, however long it takes to be certain."""
        backoff_s = FENCE_BACKOFF_S_FIRST
        while True:
            try:
                await self.control.fence_agent(
                    FenceAgent(incarnation), timeout_s=self.settings.commit_timeout_ms / 1000
                )
            except BraidError as error:
                log.warning("a dead shard could not be fenced off yet", error=str(error), help=error.help)
                await self.clock.sleep(self.entropy.uniform(0.5, 1.0) * backoff_s)
                backoff_s = min(2 * backoff_s, FENCE_BACKOFF_S_MAX)
            else:
                return

    def is_journaled(self, topic_id: bytes) -> bool:
        """Whether writes to a topic go to the journal: acknowledged when they are stored, sequenced after that."""
        topic = self.view.topics_by_id.get(topic_id)
        return topic is not None and topic.settings.is_lightning

    def _journals(self, request: WriteRequest) -> bool:
        """Ripcord journals what would be classic, but for transactions, which cannot do without the control plane."""
        if self.ripcord.journals_all and not request.entry.attributes & TRANSACTIONAL_BIT:
            return True
        return self.is_journaled(request.topic_id)

    async def _journal_instead(self, draft: Draft) -> bool:
        """What was on its way when the control plane went need not fail."""
        if not self.ripcord.journals_all or any(
            request.entry.attributes & TRANSACTIONAL_BIT for requests in draft.groups.values() for request in requests
        ):
            return False
        return await self.journal.take_over(draft)

    def _left_to_replay(self, partitions: list[Partition]) -> None:
        if not all(self.is_journaled(topic_id) for topic_id, _ in partitions):
            self.ripcord.await_replay()

    def topic_name(self, topic_id: bytes) -> str:
        topic = self.view.topics_by_id.get(topic_id)
        return topic.info.name if topic is not None else topic_id.hex()

    async def start(self) -> None:
        listen = self.settings.listen
        loop = asyncio.get_running_loop()
        try:
            # Bound before it registers, so that nobody is sent to a port that is not there.
            server = await loop.create_server(
                lambda: KafkaConnection(self.dispatcher), listen.host, listen.port, backlog=1024, start_serving=False
            )
        except OSError as error:
            raise InvalidSetting(
                f"cannot listen on {listen.host}:{listen.port}: {error.strerror or error}",
                help="stop what uses the port, or give another address with --listen",
            ) from error
        self.port = server.sockets[0].getsockname()[1]
        advertised = self.settings.advertised
        cache_address = await self.zone_cache.start() if self.zone_cache is not None else ""
        port = advertised.port if advertised is not None else self.port
        try:
            await self._join(self.settings.advertised_host, port, cache_address)
        except BaseException:
            server.close()
            if self.zone_cache is not None:
                await self.zone_cache.close()
            raise
        if self.zone_cache is not None:
            self._background.spawn(self.zone_cache.follow())
        self._background.spawn(self.follower.run())
        self._heartbeats = self._background.spawn(self.session.run())
        self._background.spawn(self.journal.replays.run())
        if self.ripcord.mode != "off":
            self._ripcord_loop = self._background.spawn(self.ripcord.run())
        if self.sharing is not None:
            self.sharing.start()
        await server.start_serving()
        self._server = server
        log.info("agent started", node_id=self.node_id, port=self.port, incarnation=self.incarnation)

    async def _join(self, host: str, port: int, cache_address: str) -> None:
        try:
            await self.session.register(host, port, cache_address)
            await self.follower.load()
            await self._check_store_of(self.view.cluster_id)
        except WrongStore:
            await self.session.leave()
            raise
        except (ControlUnavailable, DeadlineExceeded):
            if self.ripcord.mode == "off":
                raise
            await self.ripcord.start_alone(host, port, cache_address)

    async def _check_store_of(self, cluster_id: str) -> None:
        """What is written to another store than the control plane's would be acknowledged, and found by nobody."""
        url, deadline_s = self.store.url, self.clock.monotonic_s() + OWNER_WAIT_S
        while True:
            try:
                owner = await read_owner(self.store)
                break
            except NotFound:
                # The control plane may be about to write it: it was not able to when it started.
                if self.clock.monotonic_s() >= deadline_s:
                    message = f"{url} is not the control plane's store: no cluster has used it"
                    raise WrongStore(message, help="Give agents and control plane the same --store.") from None
                await self.clock.sleep(OWNER_WAIT_S / 5)
            except StoreError as error:
                log.warning("whose store it is cannot be told yet", store=url, error=str(error), help=error.help)
                return
        if owner != cluster_id:
            raise WrongStore(
                f"{url} belongs to cluster {owner}, and the control plane to {cluster_id}",
                help="Give agents and control plane the same --store.",
            )

    async def stop(self) -> None:
        """Stop accepting, leave, so that clients are sent elsewhere, and answer what was accepted."""
        if self._server is not None:
            self._server.close()
        self.dispatcher.begin_drain()
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        await self.session.leave()
        if self._ripcord_loop is not None:
            self._ripcord_loop.cancel()
        await self.ripcord.withdraw()
        await (self.sharing or self._batcher).flush()
        await self.journal.flush()
        await self._uploads.wait_all()
        await self.dispatcher.finish_drain(DRAIN_TIMEOUT_S)
        await self.journal.finish(DRAIN_TIMEOUT_S)
        if self.sharing is not None:
            self.sharing.close()
        await self._background.cancel_all()
        await self.cache.close()
        if self.zone_cache is not None:
            await self.zone_cache.close()
        log.info("agent stopped", node_id=self.node_id)
