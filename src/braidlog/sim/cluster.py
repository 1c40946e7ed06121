"""A simulated deployment: a control plane and some agents, each its own process on its own host, and one bucket."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from braidlog.agent.agent import Agent
from braidlog.control.executor import InProcessExecutor
from braidlog.control.group_settings import GroupSettings
from braidlog.control.interface import COMPACT, MERGE
from braidlog.control.metadata import open_metadata
from braidlog.control.remote import connect_control
from braidlog.control.server import serve_control
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.control.worker import Worker
from braidlog.objects.retrying import RetryingStore, RetryPolicy
from braidlog.objects.store import Store
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError
from braidlog.runtime.metrics import Metrics
from braidlog.runtime.quantities import Address
from braidlog.runtime.settings import AgentSettings
from braidlog.sim.clock import SimClock
from braidlog.sim.loop import VirtualLoop
from braidlog.sim.network import Network
from braidlog.sim.process import Process
from braidlog.sim.store import Bucket, SimStore, StoreWeather
from braidlog.sim.table import Restless, SimTable
from braidlog.writing.board import BoardShape

CONTROL_HOST = "control"
CONTROL_PORT = 9190
KAFKA_PORT = 9092

CONTROL_SETTINGS = ControlSettings(
    heartbeat_interval_s=2.0,
    session_timeout_s=10.0,
    epoch_interval_s=20.0,
    grace_epochs=3,
    sweep_interval_s=15.0,
    full_sweep_interval_s=120.0,
    unreferenced_grace_s=30.0,
    retention_interval_s=30.0,
    groups=GroupSettings(
        initial_rebalance_delay_ms=200,
        session_timeout_ms_min=1000,
        consumer_session_timeout_ms=6000,
        consumer_heartbeat_interval_ms=1000,
    ),
)
"""Everything that takes hours in a real deployment takes a minute here, so that a short run sees it happen."""

SHARD_SILENCE_S_MAX = 10.0

RETRY = RetryPolicy(attempts_max=5, attempt_timeout_s=6.0, deadline_s=25.0)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    agent_count: int = 2
    shard_count: int = 1
    """Shards of each agent. Each is a process on a host of its own, as far as network and nemesis go."""
    uploads_in_flight_max: int = 16
    restless: bool = False
    """Whether shards regroup at random instead of by their load."""
    upload_interval_ms: int = 250
    upload_size_bytes: int = 64 * 1024
    cache_bytes: int = 1 << 20
    control: ControlSettings = CONTROL_SETTINGS
    ripcord: str = "off"
    agent: Mapping[str, object] = field(default_factory=dict)
    """Further settings of the agents."""
    worker_count: int = 0
    """Workers that merge and compact. Each is a process on a host of its own."""


class SimCluster:
    """Built in the world; `start` boots everything. Whatever is killed is started again by name."""

    def __init__(self, loop: VirtualLoop, entropy: Entropy, folder: Path, plan: ClusterPlan) -> None:
        self.loop = loop
        self.plan = plan
        self._entropy = entropy.fork("cluster")
        self._folder = folder
        self.network = Network(loop, entropy)
        loop.network = self.network
        self.bucket = Bucket(loop)
        self.store_weather = StoreWeather()
        self.processes: dict[str, Process] = {}
        self.agents: dict[str, Agent] = {}
        self.workers: dict[str, Worker] = {}
        self.control: ControlService | None = None
        self._boots = 0
        self._seats: dict[str, tuple[SimTable, int]] = {}
        if plan.shard_count > 1:
            for agent in range(plan.agent_count):
                shape = BoardShape(plan.shard_count, slot_count=64, arena_bytes=4 * 1024)
                table = SimTable(loop, self._entropy.fork(f"table {agent}"), shape)
                for shard in range(plan.shard_count):
                    self._seats[f"agent-{agent}.{shard}"] = (table, shard)

    @property
    def agent_names(self) -> list[str]:
        return list(self._seats) or [f"agent-{number}" for number in range(self.plan.agent_count)]

    @property
    def troubles(self) -> list[str]:
        """What the shards' tables saw that must not be."""
        return [trouble for table, shard in self._seats.values() if shard == 0 for trouble in table.troubles]

    @property
    def worker_names(self) -> list[str]:
        return [f"worker-{number}" for number in range(self.plan.worker_count)]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where clients may connect, as they were configured with."""
        return [(name, KAFKA_PORT) for name in self.agent_names]

    async def start(self) -> None:
        self.boot(CONTROL_HOST)
        for name in [*self.agent_names, *self.worker_names]:
            self.boot(name)
        if self._seats:
            self._watch()

    def _watch(self) -> None:
        """As an agent's supervisor does: a shard whose event loop does not run is killed and started again."""
        for name, (table, shard) in self._seats.items():
            process = self.processes[name]
            seen_s = table.board.seen_s(shard)
            if process.is_alive and seen_s and self.loop.time() - seen_s > SHARD_SILENCE_S_MAX:
                self.kill(name)
                self.loop.call_later(0.1, self.boot, name)
        self.loop.call_later(1.0, self._watch)

    def boot(self, name: str) -> None:
        """Start a process that is not running. It keeps trying until it is up, as a supervisor would."""
        known = self.processes.get(name)
        if known is not None and known.is_alive:
            return
        process = Process(f"{name}#{self._boots}", name)
        self._boots += 1
        if known is not None:
            process.skew_ms = known.skew_ms
        self.processes[name] = process
        entropy = self._entropy.fork(process.name)
        if name == CONTROL_HOST:
            main = self._run_control(process, entropy)
        elif name in self.worker_names:
            main = self._run_worker(name, process, entropy)
        else:
            main = self._run_agent(name, process, entropy)
        self.loop.spawn_in(process, main)

    def kill(self, name: str) -> None:
        process = self.processes[name]
        if process.is_alive:
            process.kill()
            if name in self._seats:
                table, shard = self._seats[name]
                table.bury(shard)

    def pause(self, name: str) -> None:
        self.processes[name].is_paused = True

    def resume(self, name: str) -> None:
        self.loop.resume(self.processes[name])

    def _store(self, process: Process, entropy: Entropy) -> Store:
        inner = SimStore(self.bucket, self.loop, entropy.fork("store"), self.store_weather)
        return RetryingStore(inner, RETRY, clock=SimClock(self.loop, process), entropy=entropy.fork("retries"))

    async def _run_control(self, process: Process, entropy: Entropy) -> None:
        clock = SimClock(self.loop, process)
        metadata = await open_metadata(f"sqlite://{self._folder}/metadata.db")
        service = ControlService(metadata, self._store(process, entropy), clock, entropy, self.plan.control)
        await service.start()
        self.control = service
        await serve_control(service, f"{CONTROL_HOST}:{CONTROL_PORT}")

    async def _run_agent(self, name: str, process: Process, entropy: Entropy) -> None:
        clock = SimClock(self.loop, process)
        settings = AgentSettings.model_validate(
            {
                "listen": Address(name, KAFKA_PORT),
                "upload_interval_ms": self.plan.upload_interval_ms,
                "upload_size_bytes": self.plan.upload_size_bytes,
                "cache_bytes": self.plan.cache_bytes,
                "ripcord": self.plan.ripcord,
                "cache_listen": "off",
                "uploads_in_flight_max": self.plan.uploads_in_flight_max,
                **self.plan.agent,
            }
        )
        table, shard = self._seats.get(name, (None, 0))
        seat = table.sit_down(shard, process) if table is not None else None
        while True:
            control = connect_control(f"{CONTROL_HOST}:{CONTROL_PORT}", clock=clock, entropy=entropy.fork("rpc"))
            agent = Agent(control, self._store(process, entropy), clock, entropy, settings, Metrics(), seat)
            if agent.sharing is not None and self.plan.restless:
                agent.sharing.policy = Restless(entropy.fork("restless"))
            try:
                await agent.start()
            except (BraidError, OSError):
                # A supervisor would start the process again; its port is free again after that.
                self.network.close_listener(name, KAFKA_PORT)
                await control.close()
                await clock.sleep(1.0)
                continue
            self.agents[name] = agent
            return

    async def _run_worker(self, name: str, process: Process, entropy: Entropy) -> None:
        clock = SimClock(self.loop, process)
        control = connect_control(f"{CONTROL_HOST}:{CONTROL_PORT}", clock=clock, entropy=entropy.fork("rpc"))
        executor = InProcessExecutor(self._store(process, entropy), clock, entropy.fork("jobs"))
        worker = Worker(control, executor, clock, entropy, name=process.name, kinds=[MERGE, COMPACT])
        self.workers[name] = worker
        await worker.run()

    def settle(self) -> None:
        """Good weather: everything runs, nothing is blocked, the store answers."""
        self.bucket.watchers.clear()
        self.network.heal()
        self.network.weather.loss = 0.0
        self.network.weather.delay_s_max = 0.002
        calm = StoreWeather()
        for name in ("put_s_median", "get_s_median", "error", "slow_down", "lost_answer", "late_put", "torn_read"):
            setattr(self.store_weather, name, getattr(calm, name))
        for name, process in list(self.processes.items()):
            if process.is_paused:
                self.resume(name)
            process.skew_ms = 0
            self.boot(name)
