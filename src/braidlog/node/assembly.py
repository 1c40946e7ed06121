"""Assembles a running control plane, agent or both from settings.

Every `braid` process starts here, in tests and benchmarks too, so that all run the same code.
"""

import asyncio
import math
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from braidlog.configs.resources import BROKER_RESOURCE
from braidlog.control.groups.meters import GroupMeters
from braidlog.control.groups.settings import GroupSettings, MigrationPolicy
from braidlog.control.interface import AlterConfigs, ConfigChange, ControlPlane
from braidlog.control.jobs.settings import JobSettings
from braidlog.control.journals.meters import JournalMeters
from braidlog.control.journals.settings import JournalSettings
from braidlog.control.metadata.meters import CopyMeters
from braidlog.control.metadata.shipped import with_copy
from braidlog.control.metadata.store import (
    BucketParts,
    DeltaFollower,
    DumpedMetadata,
    MetadataBusy,
    MetadataStore,
    SharedMetadata,
    open_metadata,
)
from braidlog.control.server import serve_control
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.control.standbys import announce_while
from braidlog.control.transactions.settings import TransactionSettings
from braidlog.cost.prices import PRICES
from braidlog.node.metadata_lock import hold_metadata
from braidlog.objects.latency import SlowStore, latency_profile
from braidlog.objects.metered import MeteredStore, StoreMetrics
from braidlog.objects.open import open_store
from braidlog.objects.retries import DEFAULT_RETRY, RetryPolicy
from braidlog.objects.store import Store
from braidlog.runtime.allocator import keep_freed_memory
from braidlog.runtime.clock import Clock, SystemClock
from braidlog.runtime.entropy import Entropy, SystemEntropy
from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.http import Gather, Probe, bind_http, bound_address, serve_http
from braidlog.runtime.metrics import Metrics
from braidlog.runtime.quantities import Address, Addresses
from braidlog.runtime.settings import AgentSettings, ControlPlaneSettings, Settings
from braidlog.runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from braidlog.agent.agent import Agent
    from braidlog.node.shards import ShardSupervisor
    from braidlog.writing.shards.link import ShardLinks

UNREFERENCED_GRACE_S = 600.0
"""How long an object that nothing refers to stays, for reads that are under way."""
JOURNAL_GAP_S_MAX = 6 * 3600.0
"""How long a journaled batch waits for journals that cannot be replayed, because they may hold earlier batches."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What is running, and its addresses."""

    agent: "Agent | None" = None
    control_service: ControlService | None = None
    control: Address | Addresses | None = None
    metrics: Address | None = None
    shards: Sequence[Address] = ()
    """The addresses of the shards, if the agent has several."""
    console: Address | None = None

    @property
    def kafka(self) -> Address | None:
        if self.shards:
            return self.shards[0]
        return Address(self.agent.settings.listen.host, self.agent.port) if self.agent is not None else None

    async def wait_lost(self) -> str:
        """Return when this process must stop, with the reason."""
        if self.control_service is None:
            await asyncio.get_running_loop().create_future()  # an agent can always continue: it holds no state
        else:
            await self.control_service.fenced.wait()
        return "another control plane has taken over the metadata store"

    def as_dict(self) -> Mapping[str, str]:
        places = {"kafka": self.kafka, "control": self.control, "metrics": self.metrics, "console": self.console}
        found = {name: str(place) for name, place in places.items() if place is not None}
        return {**found, "shards": ",".join(map(str, self.shards))} if self.shards else found


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The components that a process is given from outside."""

    clock: Clock
    entropy: Entropy
    metrics: Metrics

    @classmethod
    def of_this_machine(cls) -> "Surroundings":
        return cls(SystemClock(), SystemEntropy(), Metrics(process=True))


def shard_count(settings: AgentSettings, default: int) -> int:
    if not settings.store_url.startswith("memory:"):
        return settings.shards or default
    if settings.shards > 1:
        raise InvalidSetting(
            f"{settings.shards} shards cannot share {settings.store_url}, which each of them would have for itself",
            help="Use another store, or --shards 1.",
        )
    return 1


def core_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@asynccontextmanager
async def run_embedded(settings: Settings, surroundings: Surroundings | None = None) -> AsyncIterator[Endpoints]:
    """Run control plane and agent in this process.

    Several shards run as processes beside it.
    """
    keep_freed_memory()
    around = surroundings or Surroundings.of_this_machine()
    async with AsyncExitStack() as stack:
        await _check_free("--listen", settings.agent.listen)
        await _check_free("--metrics", settings.agent.metrics_listen)
        if "control_listen" in settings.origins:
            await _check_free("--set control_listen=HOST:PORT", settings.control.control_listen)
        store = await open_agent_store(stack, settings.agent, around)
        service = await _start_control(stack, settings.control, store, around, settings.agent.listen)
        control = await _serve_embedded(stack, settings, service)
        agent_settings = settings.agent.model_copy(update={"control": Addresses((control,))})
        if (count := shard_count(settings.agent, 1)) > 1:
            supervisor, metrics = await _start_shards(stack, agent_settings, count, around, _fenced(service))
            _embed_pipeline(stack, settings, service, control, store, around)
            _watch_loop(stack, around)
            yield Endpoints(control_service=service, control=control, metrics=metrics, shards=supervisor.addresses)
            return
        listener = _bind_metrics(stack, agent_settings.metrics_listen)
        agent = await _start_agent(stack, _with_metrics(agent_settings, listener), service, store, around)
        ready = _all_well(_fenced(service), _serving(agent))
        metrics = await _start_http(stack, listener, around, _fenced(service), ready)
        _embed_pipeline(stack, settings, service, control, store, around)
        _watch_loop(stack, around)
        yield Endpoints(agent=agent, control_service=service, control=control, metrics=metrics)


def _embed_pipeline(
    stack: AsyncExitStack,
    settings: Settings,
    service: ControlService,
    control: Address,
    store: Store,
    around: Surroundings,
) -> None:
    if settings.control.pipeline == "off":
        return
    from braidlog.node.pipeline import EmbeddedPipeline

    stack.push_async_callback(EmbeddedPipeline(service, control, settings.agent, store, around).close)


@asynccontextmanager
async def run_agent(settings: AgentSettings, surroundings: Surroundings | None = None) -> AsyncIterator[Endpoints]:
    """Run an agent whose control plane is another process."""
    around = surroundings or Surroundings.of_this_machine()
    if (count := shard_count(settings, core_count())) > 1:
        async with AsyncExitStack() as stack:
            supervisor, metrics = await _start_shards(stack, settings, count, around, _all_well())
            _watch_loop(stack, around)
            yield Endpoints(metrics=metrics, shards=supervisor.addresses)
        return
    async with run_shard(settings, None, around) as endpoints:
        yield endpoints


@asynccontextmanager
async def run_shard(
    settings: AgentSettings, links: "ShardLinks | None", surroundings: Surroundings | None = None
) -> AsyncIterator[Endpoints]:
    """Run one shard of an agent, or the whole agent if it has only one."""
    from braidlog.control.remote import connect_control

    keep_freed_memory()
    around = surroundings or Surroundings.of_this_machine()
    async with AsyncExitStack() as stack:
        store = await open_agent_store(stack, settings, around)
        control = connect_control(str(settings.control), clock=around.clock, entropy=around.entropy.fork("control"))
        stack.push_async_callback(control.close)
        listener = _bind_metrics(stack, settings.metrics_listen)
        agent = await _start_agent(stack, _with_metrics(settings, listener), control, store, around, links)
        metrics = await _start_http(stack, listener, around, _all_well(), _serving(agent))
        _watch_loop(stack, around)
        yield Endpoints(agent=agent, metrics=metrics)


async def _start_shards(
    stack: AsyncExitStack, settings: AgentSettings, count: int, around: Surroundings, healthy: Probe
) -> "tuple[ShardSupervisor, Address | None]":
    from braidlog.node.shards import run_shards

    supervisor = await stack.enter_async_context(
        run_shards(settings, count, around.clock, around.entropy.fork("shards"))
    )
    ready = _all_well(healthy, supervisor.trouble)
    metrics = await _start_http(stack, settings.metrics_listen, around, healthy, ready, supervisor.figures)
    return supervisor, metrics


@asynccontextmanager
async def run_control(
    settings: ControlPlaneSettings, surroundings: Surroundings | None = None
) -> AsyncIterator[Endpoints]:
    """Run a control plane that agents reach over the network."""
    around = surroundings or Surroundings.of_this_machine()
    async with AsyncExitStack() as stack:
        await _check_free("--listen", settings.control_listen)
        await _check_free("--metrics", settings.control_metrics_listen)
        store = await _open_store(stack, settings.store_url, around)
        service = await _start_control(stack, settings, store, around, settings.control_listen)
        server = await serve_control(service, str(settings.control_listen))
        stack.push_async_callback(server.close)
        fenced = _fenced(service)
        metrics = await _start_http(stack, settings.control_metrics_listen, around, fenced, fenced)
        _watch_loop(stack, around)
        yield Endpoints(control_service=service, control=Address.parse(server.address), metrics=metrics)


async def _serve_embedded(stack: AsyncExitStack, settings: Settings, service: ControlService) -> Address:
    """Serve the embedded control plane to other processes, at its usual port.

    These are Spark jobs, workers and commands.

    If another Braidlog has that port and nobody asked for it, it takes any free one.
    """
    address = settings.control.control_listen
    try:
        server = await serve_control(service, str(address))
    except OSError as error:
        if "control_listen" in settings.origins:
            raise InvalidSetting(
                f"cannot listen on {address}: {error.strerror or error}",
                help="Stop what uses the port, or give another one with --set control_listen=HOST:PORT.",
            ) from error
        server = await serve_control(service, str(Address(address.host, 0)))
    stack.push_async_callback(server.close)
    return Address.parse(server.address)


async def _check_free(option: str, address: Address | None) -> None:
    """Raise unless the address is free.

    Called before the metadata is taken over, so that a second Braidlog that was started by mistake does not end the
    first one.
    """
    if address is None or address.port == 0:
        return
    try:
        server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, address.host, address.port, start_serving=False
        )
    except OSError as error:
        raise InvalidSetting(
            f"cannot listen on {address}: {error.strerror or error}",
            help=f"Stop what uses the port, or give another address with {option}.",
        ) from error
    server.close()
    await server.wait_closed()


def _watch_loop(stack: AsyncExitStack, around: Surroundings) -> None:
    """Watch the event loop from now on, not earlier.

    A process that starts loads modules, and nobody waits for it.
    """
    watchdog = Watchdog(around.clock)
    watchdog.start()
    stack.callback(watchdog.stop)
    around.metrics.register(watchdog)


async def open_agent_store(stack: AsyncExitStack, settings: AgentSettings, around: Surroundings) -> Store:
    def slow(inner: Store) -> Store:
        entropy = around.entropy.fork("store latency")
        return SlowStore(inner, latency_profile(settings.store_latency), clock=around.clock, entropy=entropy)

    wrappers = [slow] if settings.store_latency != "none" else []
    return await _open_store(stack, settings.store_url, around, settings.store_price, upload_retry(settings), wrappers)


async def _open_store(
    stack: AsyncExitStack,
    url: str,
    around: Surroundings,
    price: str = "auto",
    retry: RetryPolicy = DEFAULT_RETRY,
    wrappers: Sequence[Callable[[Store], Store]] = (),
) -> Store:
    figures = StoreMetrics(around.metrics.registry)

    def metered(inner: Store) -> Store:
        return MeteredStore(inner, figures, clock=around.clock, price=PRICES.get(price))

    entropy = around.entropy.fork("store")
    store = open_store(url, clock=around.clock, entropy=entropy, retry=retry, wrap=[*wrappers, metered])
    stack.push_async_callback(store.close)
    return store


def upload_retry(settings: AgentSettings) -> RetryPolicy:
    """Return the retry policy for uploads.

    It leaves a part of a produce request's time for sequencing.
    """
    from braidlog.writing.path import SEQUENCING_SHARE

    deadline_s = settings.request_timeout_ms / 1000 * (1 - SEQUENCING_SHARE)
    return replace(DEFAULT_RETRY, deadline_s=deadline_s, attempt_timeout_s=max(deadline_s / 2, 1.0))


async def _start_control(
    stack: AsyncExitStack, settings: ControlPlaneSettings, store: Store, around: Surroundings, address: Address
) -> ControlService:
    """`address` is the one by which people know this process."""
    _make_folder(settings.metadata_url)
    await stack.enter_async_context(
        hold_metadata(settings.metadata_url, f"control plane at {address}", around.clock, take_over=settings.take_over)
    )
    holder = f"the control plane at {address}"
    parts = BucketParts(store, around.clock, around.entropy.fork("metadata"), holder)
    metadata = await open_metadata(settings.metadata_url, parts)
    if settings.metadata_copy and isinstance(metadata, DumpedMetadata):
        copy_entropy = around.entropy.fork("copy of the metadata")
        metadata = with_copy(metadata, store, around.clock, copy_entropy, interval_s=settings.metadata_copy_interval_s)
        around.metrics.register(CopyMeters(metadata))
    if settings.standby and not isinstance(metadata, SharedMetadata):
        raise InvalidSetting(
            f"standby=true needs metadata that others can follow, and {settings.metadata_url} is a local file",
            help="Use --metadata bucket:// to keep it in the store, or postgresql://.",
        )
    service = ControlService(
        metadata, store, around.clock, around.entropy.fork("control plane"), control_settings(settings, holder)
    )
    stack.push_async_callback(service.close)
    starting = _start_service(service, metadata, settings)
    if settings.standby:
        await announce_while(starting, store, around.clock, holder, lambda: _delta_number(metadata))
    else:
        await starting
    around.metrics.register(JournalMeters(service.parts.journals))
    around.metrics.register(GroupMeters(service.parts.groups.commits.offsets, service.parts.catalog))
    if settings.num_partitions != 1 and "num.partitions" not in service.parts.catalog.cluster_configs:
        change = ConfigChange("num.partitions", 0, str(settings.num_partitions))
        await service.alter_configs(AlterConfigs(BROKER_RESOURCE, "", [change]))
    return service


def _delta_number(metadata: MetadataStore) -> int:
    return metadata.delta_number if isinstance(metadata, DeltaFollower) else -1


async def _start_service(service: ControlService, metadata: MetadataStore, settings: ControlPlaneSettings) -> None:
    """Start the service once nobody else holds the metadata.

    If it should take over, it starts at once.
    """
    while True:
        if isinstance(metadata, SharedMetadata) and not settings.take_over:
            await metadata.wait_vacant(patient=settings.standby, silent_s=settings.take_over_after_s)
        try:
            await service.start()
            return
        except MetadataBusy:
            if not settings.standby:
                raise
            # Another standby was quicker: wait for that one.


def control_settings(settings: ControlPlaneSettings, holder: str = "this control plane") -> ControlSettings:
    """Return the control plane's internal settings for those that people write.

    `holder` is the name of this process, for people.
    """
    return ControlSettings(
        holder=holder,
        heartbeat_interval_s=settings.agent_session_timeout_s / 5,
        session_timeout_s=settings.agent_session_timeout_s,
        epoch_interval_s=settings.write_epoch_interval_s,
        grace_epochs=max(1, math.ceil(settings.sweep_grace_s / settings.write_epoch_interval_s)),
        unreferenced_grace_s=min(UNREFERENCED_GRACE_S, settings.sweep_grace_s),
        sweep_interval_s=min(settings.sweep_interval_s, settings.write_epoch_interval_s),
        full_sweep_interval_s=settings.full_sweep_interval_s,
        retention_interval_s=settings.retention_check_interval_s,
        jobs=JobSettings(
            plan_interval_s=settings.job_check_interval_s,
            lease_s=settings.job_lease_s,
            merge_target_bytes=settings.merge_size_bytes,
            merge_age_s=settings.merge_age_s,
            compaction_bytes_min=settings.compaction_size_bytes,
            compaction_interval_s=settings.compaction_interval_s,
        ),
        journals=JournalSettings(
            scan_interval_s=settings.scan_interval_ms / 1000,
            sequence_age_s=settings.sequence_age_ms / 1000,
            gap_s=settings.lightning_gap_ms / 1000,
            gap_s_max=max(JOURNAL_GAP_S_MAX, settings.lightning_gap_ms / 1000),
            replay_files_per_s=settings.replay_files_per_s,
        ),
        transactions=TransactionSettings(
            timeout_ms_max=settings.transaction_max_timeout_ms,
            id_expiration_ms=settings.transactional_id_expiration_ms,
        ),
        groups=GroupSettings(
            session_timeout_ms_min=settings.group_min_session_timeout_ms,
            session_timeout_ms_max=settings.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
            consumer_session_timeout_ms=settings.group_consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
            consumer_migration_policy=MigrationPolicy(settings.group_consumer_migration_policy),
        ),
    )


async def _start_agent(
    stack: AsyncExitStack,
    settings: AgentSettings,
    control: ControlPlane,
    store: Store,
    around: Surroundings,
    links: "ShardLinks | None" = None,
) -> "Agent":
    from braidlog.agent.agent import Agent  # a control plane starts twice as fast without the Kafka codec

    agent = Agent(control, store, around.clock, around.entropy.fork("agent"), settings, around.metrics, links)
    await agent.start()
    stack.push_async_callback(agent.stop)
    return agent


def _bind_metrics(stack: AsyncExitStack, address: Address | None) -> socket.socket | None:
    """Bind the metrics' address before the agent starts: it names it to consoles."""
    if address is None:
        return None
    return stack.enter_context(bind_http(address))


def _with_metrics(settings: AgentSettings, listener: socket.socket | None) -> AgentSettings:
    bound = bound_address(listener) if listener is not None else None
    return settings.model_copy(update={"metrics_listen": bound})


async def _start_http(
    stack: AsyncExitStack,
    address: Address | socket.socket | None,
    around: Surroundings,
    healthy: Probe,
    ready: Probe,
    gather: Gather | None = None,
) -> Address | None:
    if address is None:
        return None
    return await stack.enter_async_context(
        serve_http(address, around.metrics, healthy=healthy, ready=ready, gather=gather)
    )


def _make_folder(metadata_url: str) -> None:
    scheme, _, path = metadata_url.partition("://")
    if path and scheme != "postgresql":
        Path(path).parent.mkdir(parents=True, exist_ok=True)


def _fenced(service: ControlService) -> Probe:
    return lambda: "another control plane has taken over" if service.fenced.is_set() else None


def _serving(agent: "Agent") -> Probe:
    return lambda: None if agent.is_ready else "the agent is not registered, or has not heard of changes lately"


def _all_well(*probes: Probe) -> Probe:
    def check() -> str | None:
        troubles: Sequence[str | None] = [probe() for probe in probes]
        return next((trouble for trouble in troubles if trouble is not None), None)

    return check
