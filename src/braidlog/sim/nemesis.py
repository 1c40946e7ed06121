"""Injects faults.

Each seed has its own mix of a few kinds, so that each kind is tested in depth.
"""

from collections.abc import Callable

from braidlog.objects.keys import incarnation_prefix
from braidlog.sim.cluster import CONTROL_HOST
from braidlog.sim.virtual.network import CLIENT_HOST
from braidlog.sim.virtual.store import StoreWeather
from braidlog.sim.world import World

GRACE_S = 70.0
"""Longer than write epochs are valid in a simulated cluster: a process paused for so long can only fail."""


class Nemesis:
    """Strikes at random moments, and undoes most faults after a while.

    All strikes are planned in advance, and each has an entropy of its own. So leaving some out (see `World.strikes`)
    does not change the others, and a failing run can be shrunk.
    """

    def __init__(self, world: World, *kinds: str) -> None:
        """Use the given kinds (`kill-agent`, …), or let the seed pick some."""
        self._world = world
        self._layout = world.entropy.fork("nemesis")
        self._entropy = self._layout
        known: dict[str, Callable[[], str]] = {
            "kill-agent": self._kill_agent,
            "kill-control": self._kill_control,
            "pause-agent": self._pause_agent,
            "pause-agent-long": self._pause_agent_long,
            "pause-control": self._pause_control,
            "cut-agent-from-control": self._cut_agent_from_control,
            "cut-one-way": self._cut_one_way,
            "cut-clients": self._cut_clients,
            "lose-packets": self._lose_packets,
            "slow-network": self._slow_network,
            "store-errors": self._store_errors,
            "store-storm": self._store_storm,
            "store-silence": self._store_silence,
            "late-puts": self._late_puts,
            "long-tail": self._long_tail,
            "torn-reads": self._torn_reads,
            "skew-clock": self._skew_clock,
        }
        if world.cluster.worker_names:
            known |= {
                "kill-worker": self._kill_worker,
                "pause-worker": self._pause_worker,
                "pause-worker-long": self._pause_worker_long,
                "cut-worker": self._cut_worker,
            }
        if world.journaled:
            known |= {
                "kill-after-put": self._kill_after_put,
                "pause-after-put": self._pause_after_put,
                "cut-and-kill-agent": self._cut_and_kill_agent,
                "kill-replayer": self._kill_replayer,
                "pause-replayer": self._pause_replayer,
                "pause-replayer-long": self._pause_replayer_long,
                "control-outage": self._control_outage,
            }
        self._kinds = [known[kind] for kind in kinds]
        if not kinds:
            rest = list(known.values())
            self._kinds = [rest.pop(self._layout.below(len(rest))) for _ in range(2 + self._layout.below(6))]

    async def run(self, duration_s: float, *, pause_s: float = 6.0) -> None:
        """Strike every few seconds until the time is up."""
        world = self._world
        start_s = world.loop.time()
        at_s = 0.0
        strikes: list[tuple[float, Callable[[], str]]] = []
        while (at_s := at_s + self._layout.uniform(0.2, 2 * pause_s)) < duration_s:
            strikes.append((at_s, self._kinds[self._layout.below(len(self._kinds))]))
        for number, (at_s, strike) in enumerate(strikes):
            await world.sleep(max(0.0, start_s + at_s - world.loop.time()))
            if world.strikes is None or number in world.strikes:
                self._entropy = self._layout.fork(f"strike {number}")
                world.note(strike())
                world.faults += 1
        world.strikes_laid_out = len(strikes)
        await world.sleep(max(0.0, start_s + duration_s - world.loop.time()))

    def _later(self, undo: Callable[[], None], low_s: float, high_s: float) -> float:
        delay_s = self._entropy.uniform(low_s, high_s)
        self._world.loop.call_later(delay_s, undo)
        return delay_s

    def _any_agent(self) -> str:
        names = self._world.cluster.agent_names
        return names[self._entropy.below(len(names))]

    def _any_control(self) -> str:
        """The only control plane, or mostly the one that is active."""
        names = self._world.cluster.control_names
        if len(names) == 1:
            return CONTROL_HOST
        active = self._world.cluster.active_control
        return names[self._entropy.below(len(names))] if active is None or self._entropy.below(3) == 0 else active

    # ── processes ──

    def _kill(self, name: str, high_s: float) -> str:
        self._world.cluster.kill(name)
        delay_s = self._later(lambda: self._world.cluster.boot(name), 0.1, high_s)
        return f"kill {name}, back in {delay_s:.1f} s"

    def _kill_agent(self) -> str:
        return self._kill(self._any_agent(), 10.0)

    def _kill_control(self) -> str:
        return self._kill(self._any_control(), 8.0)

    def _pause(self, name: str, low_s: float, high_s: float) -> str:
        cluster = self._world.cluster
        process = cluster.processes[name]
        if not process.is_alive or process.is_paused:
            return f"{name} is down or paused already"
        cluster.pause(name)
        delay_s = self._later(lambda: cluster.loop.resume(process), low_s, high_s)
        return f"pause {process.name} for {delay_s:.1f} s"

    def _pause_agent(self) -> str:
        return self._pause(self._any_agent(), 0.5, 20.0)

    def _pause_agent_long(self) -> str:
        return self._pause(self._any_agent(), GRACE_S, 2 * GRACE_S)

    def _pause_control(self) -> str:
        return self._pause(self._any_control(), 0.5, 15.0)

    def _any_worker(self) -> str:
        names = self._world.cluster.worker_names
        return names[self._entropy.below(len(names))]

    def _at_work(self, name: str, strike: Callable[[], str], tries: int = 400) -> None:
        """Strike a worker while it has a job.

        Jobs are short, so random strikes would rarely hit one.
        """
        worker = self._world.cluster.workers.get(name)
        if worker is not None and worker.running:
            self._later(lambda: self._world.note(strike()), 0.0, 0.2)
        elif tries:
            self._world.loop.call_later(0.01, self._at_work, name, strike, tries - 1)

    def _kill_worker(self) -> str:
        name = self._any_worker()
        self._at_work(name, lambda: self._kill(name, 5.0))
        return f"{name} will be killed at work"

    def _pause_worker(self) -> str:
        """Pause a worker until another one has its job."""
        name = self._any_worker()
        self._at_work(name, lambda: self._pause(name, 5.0, 20.0))
        return f"{name} will be paused at work"

    def _pause_worker_long(self) -> str:
        name = self._any_worker()
        self._at_work(name, lambda: self._pause(name, GRACE_S, 2 * GRACE_S))
        return f"{name} will be paused at work, for long"

    def _cut_worker(self) -> str:
        name = self._any_worker()
        return self._cut([(name, CONTROL_HOST), (CONTROL_HOST, name)], f"cut {name} from the control plane")

    # ── journals ──

    def _after_put(self, name: str, strike: Callable[[], str], high_s: float) -> None:
        """Strike soon after the agent has put a file into the journal.

        By then it may not know of the put yet, or have just acknowledged the file, or have just had it sequenced.
        """
        cluster = self._world.cluster
        delay_s = self._entropy.uniform(0.0, high_s)
        agent = cluster.agents.get(name)
        if agent is None:
            return
        prefix = incarnation_prefix(agent.incarnation)

        def watch(key: str) -> None:
            if key.startswith(prefix) and watch in cluster.bucket.watchers:
                cluster.bucket.watchers.remove(watch)
                self._world.loop.call_later(delay_s, lambda: self._world.note(strike()))

        cluster.bucket.watchers.append(watch)

    def _kill_after_put(self) -> str:
        name = self._any_agent()
        self._after_put(name, lambda: self._kill(name, 10.0), 0.04)
        return f"{name} will be killed when it has put a file into the journal"

    def _pause_after_put(self) -> str:
        """Pause an agent between a put and its acknowledgement.

        By its return, its journal sequence may be sealed.
        """
        name = self._any_agent()
        self._after_put(name, lambda: self._pause(name, 5.0, 60.0), 0.005)
        return f"{name} will be paused when it has put a file into the journal"

    def _cut_and_kill_agent(self) -> str:
        """Cut an agent off, then kill it.

        The control plane does not hear of what it acknowledges in between.
        """
        name = self._any_agent()
        what = self._cut([(name, CONTROL_HOST), (CONTROL_HOST, name)], f"cut {name} from the control plane")
        delay_s = self._later(lambda: self._world.note(self._kill(name, 10.0)), 0.5, 8.0)
        return f"{what}, killed in {delay_s:.1f} s"

    def _replaying(self, name: str, strike: Callable[[], str], tries: int = 400) -> None:
        """Strike an agent while it runs a replay or a scan."""
        agent = self._world.cluster.agents.get(name)
        if agent is not None and agent.replays.running:
            self._later(lambda: self._world.note(strike()), 0.0, 0.1)
        elif tries:
            self._world.loop.call_later(0.01, self._replaying, name, strike, tries - 1)

    def _kill_replayer(self) -> str:
        name = self._any_agent()
        self._replaying(name, lambda: self._kill(name, 5.0))
        return f"{name} will be killed in a replay"

    def _pause_replayer(self) -> str:
        """Pause an agent until another one has its job."""
        name = self._any_agent()
        self._replaying(name, lambda: self._pause(name, 5.0, 20.0))
        return f"{name} will be paused in a replay"

    def _pause_replayer_long(self) -> str:
        name = self._any_agent()
        self._replaying(name, lambda: self._pause(name, GRACE_S, 2 * GRACE_S))
        return f"{name} will be paused in a replay, for long"

    def _control_outage(self) -> str:
        self._world.cluster.kill(CONTROL_HOST)
        delay_s = self._later(lambda: self._world.cluster.boot(CONTROL_HOST), 15.0, 60.0)
        return f"the control plane is gone, and back in {delay_s:.1f} s"

    def _skew_clock(self) -> str:
        names = [CONTROL_HOST, *self._world.cluster.agent_names]
        name = names[self._entropy.below(len(names))]
        process = self._world.cluster.processes[name]
        process.skew_ms = self._entropy.below(20_000) - 10_000
        return f"the clock of {name} is {process.skew_ms} ms off"

    # ── network ──

    def _cut(self, pairs: list[tuple[str, str]], what: str) -> str:
        network = self._world.cluster.network
        for source, destination in pairs:
            network.block(source, destination)
        delay_s = self._later(network.heal, 1.0, 40.0)
        return f"{what}, healed in {delay_s:.1f} s"

    def _cut_agent_from_control(self) -> str:
        name = self._any_agent()
        control = self._any_control()
        return self._cut([(name, control), (control, name)], f"cut {name} from {control}")

    def _cut_one_way(self) -> str:
        name, control = self._any_agent(), self._any_control()
        pair = (name, control) if self._entropy.below(2) else (control, name)
        return self._cut([pair], f"cut {pair[0]} to {pair[1]}, one way")

    def _cut_clients(self) -> str:
        name = self._any_agent()
        ways = [[(CLIENT_HOST, name)], [(name, CLIENT_HOST)], [(CLIENT_HOST, name), (name, CLIENT_HOST)]]
        return self._cut(ways[self._entropy.below(3)], f"cut clients from {name}")

    def _lose_packets(self) -> str:
        weather = self._world.cluster.network.weather
        weather.loss = self._entropy.uniform(0.01, 0.2)
        self._later(lambda: setattr(weather, "loss", 0.0), 2.0, 20.0)
        return f"lose {weather.loss:.0%} of packets"

    def _slow_network(self) -> str:
        weather = self._world.cluster.network.weather
        weather.delay_s_max = self._entropy.uniform(0.01, 0.5)
        self._later(lambda: setattr(weather, "delay_s_max", 0.002), 2.0, 20.0)
        return f"the network takes up to {weather.delay_s_max * 1000:.0f} ms"

    # ── store ──

    def _store(self, field: str, low: float, high: float, what: str) -> str:
        weather = self._world.cluster.store_weather
        calm = getattr(StoreWeather(), field)
        value = self._entropy.uniform(low, high)
        setattr(weather, field, value)
        self._later(lambda: setattr(weather, field, calm), 2.0, 25.0)
        return f"{what} ({value:.2f})"

    def _store_errors(self) -> str:
        return self._store("error", 0.05, 0.5, "the store refuses some requests")

    def _store_storm(self) -> str:
        return self._store("slow_down", 0.3, 1.0, "the store asks to slow down")

    def _store_silence(self) -> str:
        return self._store("lost_answer", 0.05, 0.5, "the store's answers get lost")

    def _late_puts(self) -> str:
        return self._store("late_put", 0.05, 0.4, "some puts land late")

    def _long_tail(self) -> str:
        return self._store("put_s_median", 0.2, 3.0, "puts take long")

    def _torn_reads(self) -> str:
        return self._store("torn_read", 0.05, 0.5, "reads end early")
