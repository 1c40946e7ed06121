"""A simulated deployment.

It has a control plane, agents and workers, each on its own host, and one bucket.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from braidlog.agent.agent import Agent
from braidlog.control.groups.settings import GroupSettings
from braidlog.control.interface import COMPACT, MERGE
from braidlog.control.metadata.bucket import BucketMetadata
from braidlog.control.metadata.image import remove_image
from braidlog.control.metadata.store import open_metadata
from braidlog.control.remote import connect_control
from braidlog.control.server import serve_control
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.jobs.parts import PART_BYTES
from braidlog.jobs.rounds import LocalEngine, RoundExecutor
from braidlog.jobs.worker import ONE_JOB, RoundLimits, Worker
from braidlog.objects.retries import RetryingStore, RetryPolicy
from braidlog.objects.store import Store
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError
from braidlog.runtime.metrics import Metrics
from braidlog.runtime.quantities import Address
from braidlog.runtime.settings import AgentSettings
from braidlog.sim.virtual.clock import SimClock
from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.sim.virtual.network import Network
from braidlog.sim.virtual.process import Process
from braidlog.sim.virtual.shard_table import Restless, SimTables
from braidlog.sim.virtual.store import Bucket, SimStore, StoreWeather
from braidlog.writing.shards.board import BoardShape

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
"""Times are short: what takes hours in a real deployment happens within a minute here."""

SHARD_SILENCE_S_MAX = 10.0

RETRY = RetryPolicy(attempts_max=5, attempt_timeout_s=6.0, deadline_s=25.0)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    agent_count: int = 2
    shard_count: int = 1
    """Shards of each agent. For the network and the nemesis, each is a process on a host of its own."""
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
    standby_count: int = 0
    """Control planes that stand by. With any, the metadata is in the bucket, and each has an image of it."""
    worker_count: int = 0
    """Workers that merge and compact. Each is a process on a host of its own."""
    rounds: RoundLimits = ONE_JOB
    parts_at_once: int = 1
    part_bytes: int = PART_BYTES


class SimCluster:
    """The processes, network and bucket of a run.

    `start` boots everything; a killed process is started again by name.
    """

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
        """The one that took over last."""
        self.active_control: str | None = None
        """Its name."""
        self._images: dict[str, BucketMetadata] = {}
        self._boots = 0
        self._seats: dict[str, tuple[SimTables, int]] = {}
        if plan.shard_count > 1:
            for agent in range(plan.agent_count):
                shape = BoardShape(plan.shard_count, slot_count=64, arena_bytes=4 * 1024)
                table = SimTables(loop, self._entropy.fork(f"table {agent}"), shape)
                for shard in range(plan.shard_count):
                    self._seats[f"agent-{agent}.{shard}"] = (table, shard)

    @property
    def agent_names(self) -> list[str]:
        return list(self._seats) or [f"agent-{number}" for number in range(self.plan.agent_count)]

    @property
    def control_names(self) -> list[str]:
        return [CONTROL_HOST, *(f"{CONTROL_HOST}-{number}" for number in range(1, self.plan.standby_count + 1))]

    @property
    def _control_address(self) -> str:
        return ",".join(f"{name}:{CONTROL_PORT}" for name in self.control_names)

    @property
    def troubles(self) -> list[str]:
        """Violations that the shards' tables have seen."""
        return [trouble for table, shard in self._seats.values() if shard == 0 for trouble in table.troubles]

    @property
    def worker_names(self) -> list[str]:
        return [f"worker-{number}" for number in range(self.plan.worker_count)]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses that clients are configured with."""
        return [(name, KAFKA_PORT) for name in self.agent_names]

    async def start(self) -> None:
        for name in [*self.control_names, *self.agent_names, *self.worker_names]:
            self.boot(name)
        if self._seats:
            self._watch()

    def _watch(self) -> None:
        """Restart a shard whose event loop does not run, as an agent's supervisor does."""
        for name, (table, shard) in self._seats.items():
            process = self.processes[name]
            seen_s = table.classic.board.seen_s(shard)
            if process.is_alive and seen_s and self.loop.time() - seen_s > SHARD_SILENCE_S_MAX:
                self.kill(name)
                self.loop.call_later(0.1, self.boot, name)
        self.loop.call_later(1.0, self._watch)

    def boot(self, name: str) -> None:
        """Start a process that is not running.

        Retries until it is up, as a supervisor would.
        """
        known = self.processes.get(name)
        if known is not None and known.is_alive:
            return
        process = Process(f"{name}#{self._boots}", name)
        self._boots += 1
        if known is not None:
            process.skew_ms = known.skew_ms
        self.processes[name] = process
        entropy = self._entropy.fork(process.name)
        if name in self.control_names:
            stands_by = self.plan.standby_count > 0
            main = self._stand_by(name, process, entropy) if stands_by else self._run_control(process, entropy)
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

    async def _stand_by(self, name: str, process: Process, entropy: Entropy) -> None:
        """A control plane that waits for its turn.

        Its supervisor starts it again when it was deposed.
        """
        clock = SimClock(self.loop, process)
        image = self._folder / f"{name}.db"
        self._let_go(name)
        if entropy.below(2):
            remove_image(image)  # a new machine, or a lost disk
        while True:
            try:
                metadata = await self._open_metadata(name, image, process, entropy)
                await metadata.wait_vacant(patient=True)
                service = ControlService(metadata, self._store(process, entropy), clock, entropy, self.plan.control)
                await service.start()
            except BraidError:
                self._let_go(name)
                await clock.sleep(1.0)
                continue
            self.control, self.active_control = service, name
            await serve_control(service, f"{name}:{CONTROL_PORT}")
            await service.fenced.wait()
            self.loop.call_soon(self._replace, name, process)
            return

    async def _open_metadata(self, name: str, image: Path, process: Process, entropy: Entropy) -> BucketMetadata:
        store, clock = self._store(process, entropy), SimClock(self.loop, process)
        metadata = BucketMetadata(image, store, clock, entropy.fork("metadata"), process.name)
        self._images[name] = metadata
        await metadata.load()
        return metadata

    def _let_go(self, name: str) -> None:
        """Close the files of a process that has ended, as its operating system does."""
        metadata = self._images.pop(name, None)
        if metadata is not None:
            metadata.let_go()

    def _replace(self, name: str, process: Process) -> None:
        if self.processes[name] is process:
            self.kill(name)
            self.loop.call_later(1.0, self.boot, name)

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
        links = table.sit_down(shard, process) if table is not None else None
        while True:
            control = connect_control(self._control_address, clock=clock, entropy=entropy.fork("rpc"))
            agent = Agent(control, self._store(process, entropy), clock, entropy, settings, Metrics(), links)
            if self.plan.restless:
                for shards in agent.write_path.shards:
                    shards.policy = Restless(entropy.fork("restless"))
            try:
                await agent.start()
            except (BraidError, OSError):
                # A supervisor would start the process again, which frees its port.
                self.network.close_listener(name, KAFKA_PORT)
                await control.close()
                await clock.sleep(1.0)
                continue
            self.agents[name] = agent
            return

    async def _run_worker(self, name: str, process: Process, entropy: Entropy) -> None:
        clock = SimClock(self.loop, process)
        control = connect_control(self._control_address, clock=clock, entropy=entropy.fork("rpc"))
        store, jobs = self._store(process, entropy), entropy.fork("jobs")
        engine = LocalEngine(store, clock, jobs, parts_at_once=self.plan.parts_at_once)
        executor = RoundExecutor(engine, store, jobs.fork("rounds"), part_bytes=self.plan.part_bytes)
        worker = Worker(
            control, executor, clock, entropy, name=process.name, kinds=[MERGE, COMPACT], limits=self.plan.rounds
        )
        self.workers[name] = worker
        await worker.run()

    def settle(self) -> None:
        """End all faults: everything runs, nothing is blocked, the store answers."""
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
