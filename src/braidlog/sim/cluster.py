"""A simulated deployment: a control plane and some agents, each its own process on its own host, and one bucket."""

from dataclasses import dataclass
from pathlib import Path

from braidlog.agent.agent import Agent
from braidlog.control.group_settings import GroupSettings
from braidlog.control.metadata import open_metadata
from braidlog.control.remote import connect_control
from braidlog.control.server import serve_control
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
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
    groups=GroupSettings(initial_rebalance_delay_ms=200, session_timeout_ms_min=1000),
)
"""Everything that takes hours in a real deployment takes a minute here, so that a short run sees it happen."""

RETRY = RetryPolicy(attempts_max=5, attempt_timeout_s=6.0, deadline_s=25.0)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    agent_count: int = 2
    upload_interval_ms: int = 250
    upload_size_bytes: int = 64 * 1024
    cache_bytes: int = 1 << 20
    control: ControlSettings = CONTROL_SETTINGS


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
        self.control: ControlService | None = None
        self._boots = 0

    @property
    def agent_names(self) -> list[str]:
        return [f"agent-{number}" for number in range(self.plan.agent_count)]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where clients may connect, as they were configured with."""
        return [(name, KAFKA_PORT) for name in self.agent_names]

    async def start(self) -> None:
        self.boot(CONTROL_HOST)
        for name in self.agent_names:
            self.boot(name)

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
        main = self._run_control(process, entropy) if name == CONTROL_HOST else self._run_agent(name, process, entropy)
        self.loop.spawn_in(process, main)

    def kill(self, name: str) -> None:
        self.processes[name].kill()

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
            }
        )
        while True:
            control = connect_control(f"{CONTROL_HOST}:{CONTROL_PORT}", clock=clock, entropy=entropy.fork("rpc"))
            agent = Agent(control, self._store(process, entropy), clock, entropy, settings, Metrics())
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

    def settle(self) -> None:
        """Good weather: everything runs, nothing is blocked, the store answers."""
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
