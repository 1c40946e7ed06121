"""Ripcord: how an agent lives through an outage of the control plane, and starts in one.

`on` journals every topic all the time, so that nothing changes when the control plane goes. `auto` does so only from
the moment on at which it is known to be away, until every journal that was written before its return is sequenced.
`off` leaves topics as they are configured: those that are journaled go on, the others are refused, to be tried again.
"""

from dataclasses import dataclass

import structlog

from braidlog.agent.ripcord.discovery import ALIVE_MS, PUBLISH_INTERVAL_S, AgentNotice, Discovery
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.agent.ripcord.snapshot import SnapshotKeeper, snapshot_of
from braidlog.agent.session import CALL_TIMEOUT_S, AgentSession
from braidlog.agent.view import ClusterView
from braidlog.control.interface import AgentHeartbeat, AgentInfo, ControlPlane, HeartbeatAnswer, RequestScan
from braidlog.objects.store import NotFound, Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, ControlUnavailable

log = structlog.get_logger(__name__)

TICK_S = 1.0
CALM_PUBLISH_INTERVAL_S = 600.0
"""How often an agent publishes itself in normal times: only so that one that starts in an outage finds it."""
SNAPSHOT_INTERVAL_S = 5.0
"""A change is in the bucket at the latest so much later, plus the time of a write."""
STALE_AGENTS_S = ALIVE_MS / 1000 + PUBLISH_INTERVAL_S
"""So long into an outage those agents are still named that the control plane named last: they may not have noticed."""
NODE_IDS_FROM, NODE_IDS_END = 1_000_000_000, 2_000_000_000
"""Where an agent that nobody knows takes its node id from while nobody can give it one."""


@dataclass(frozen=True, slots=True)
class AwaitedReplay:
    scan: int
    fencing_epoch: int
    """Of the control plane that was asked. Scans are counted anew by each."""


class Ripcord:
    def __init__(
        self,
        mode: str,
        control: ControlPlane,
        reachability: Reachability,
        session: AgentSession,
        view: ClusterView,
        store: Store,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.mode = mode
        self._control = control
        self.reachability = reachability
        self._session = session
        self._view = view
        self._clock = clock
        self._entropy = entropy
        self.discovery = Discovery(store)
        self.snapshots = SnapshotKeeper(store)
        self._is_settled = True
        """What was journaled in outages is sequenced."""
        self._awaited: AwaitedReplay | None = None
        session.on_heard = self._heard
        reachability.on_away.append(self.await_replay)
        self._published_s: float | None = None
        self._published_state = ""
        self._offered_s: float | None = None

    @property
    def state(self) -> str:
        if self.reachability.is_away:
            return "away"
        return "present" if self._is_settled or self.mode == "off" else "returning"

    @property
    def journals_all(self) -> bool:
        """Whether records of topics that are not journaled by themselves are journaled now."""
        if self.mode == "auto":
            # A session that is assumed has no write epoch, so that nothing else could be written under it.
            return self.reachability.is_away or not self._is_settled or not self._session.has_write_epoch
        return self.mode == "on"

    def await_replay(self) -> None:
        """What is journaled now is not sequenced at once: all topics stay journaled until it is."""
        self._is_settled = False
        self._awaited = None

    def _heard(self, answer: HeartbeatAnswer) -> None:
        awaited = self._awaited
        if awaited is None:
            return
        if answer.fencing_epoch != awaited.fencing_epoch:
            self._awaited = None  # another control plane, which has not heard of it: `_tick` asks again
        elif answer.scans_replayed >= awaited.scan:
            log.info("every journal of the outage is sequenced", scan=awaited.scan)
            self._is_settled = True
            self._awaited = None

    async def _ask_for_replay(self) -> None:
        """From here on the control plane tells with its heartbeats when all that was journaled so far is sequenced."""
        outages = self.reachability.outages
        incarnation = self._session.info.incarnation
        before = await self._control.heartbeat_agent(AgentHeartbeat(incarnation), timeout_s=CALL_TIMEOUT_S)
        asked = await self._control.request_scan(RequestScan(incarnation), timeout_s=CALL_TIMEOUT_S)
        if outages == self.reachability.outages and before.known:
            self._awaited = AwaitedReplay(asked.scan, before.fencing_epoch)

    # ── starting without the control plane ──

    async def start_alone(self, host: str, port: int, cache_address: str) -> None:
        """Take from the bucket what the control plane would have said."""
        try:
            snapshot = await self.snapshots.read()
        except NotFound as error:
            raise ControlUnavailable(
                "the control plane is away, and the bucket has no snapshot to start from",
                help="Start the control plane. Agents with ripcord on or auto write a snapshot while it is there.",
            ) from error
        self._view.load(snapshot.as_known())
        self.reachability.presume_away()
        known = [*(notice.agent for _, notice in await self.discovery.read_all()), *snapshot.agents]
        own = next((each.node_id for each in known if (each.host, each.port) == (host, port)), None)
        self._session.assume(host, port, own if own is not None else self._free_node_id(known), cache_address)
        age_s = max(0, self._clock.wall_ms() - snapshot.taken_ms) // 1000
        log.warning(
            "the control plane is away: started from the agents' snapshot",
            node_id=self._session.node_id,
            snapshot_age_s=age_s,
            topics=len(snapshot.topics),
        )
        # Now, and not with the first tick: clients that were sent here should find this agent in the metadata.
        await self._tell_each_other()

    def _free_node_id(self, known: list[AgentInfo]) -> int:
        taken = frozenset(agent.node_id for agent in known)
        while True:
            node_id = NODE_IDS_FROM + self._entropy.below(NODE_IDS_END - NODE_IDS_FROM)
            if node_id not in taken:
                return node_id

    # ── while it runs ──

    async def run(self) -> None:
        """Publish this agent, look for the others in an outage, and keep the snapshot up to date otherwise."""
        while True:
            await self._clock.sleep(TICK_S * self._entropy.uniform(0.8, 1.2))
            try:
                await self._tick()
            except BraidError as error:
                log.warning("the bucket could not be told or asked about agents", error=str(error), help=error.help)
            except Exception as error:
                # Whatever it is: an outage may be the next thing to happen.
                log.error("agents were not told of each other, in an unforeseen way", exc_info=error)

    async def _tick(self) -> None:
        now_s = self._clock.monotonic_s()
        if self.reachability.is_away:
            if self._is_due(self._published_s, now_s, PUBLISH_INTERVAL_S) or self._published_state != "away":
                await self._tell_each_other()
            return
        if not self._session.has_write_epoch:
            return
        if self._awaited is None and self.state == "returning":
            await self._ask_for_replay()
        due = self._is_due(self._published_s, now_s, CALM_PUBLISH_INTERVAL_S)
        if due or self._published_state != self.state:
            await self._publish()
        if self._is_due(self._offered_s, now_s, SNAPSHOT_INTERVAL_S):
            self._offered_s = now_s
            if self._view.position.revision >= 0:
                await self.snapshots.offer(snapshot_of(self._view, self._clock.wall_ms()))

    @staticmethod
    def _is_due(last_s: float | None, now_s: float, interval_s: float) -> bool:
        return last_s is None or now_s - last_s >= interval_s

    async def _publish(self) -> None:
        state = self.state
        self._published_s = self._clock.monotonic_s()
        notice = AgentNotice(
            self._session.info, self._clock.wall_ms(), self.mode, state, round(self.reachability.away_s, 3)
        )
        await self.discovery.publish(notice)
        self._published_state = state

    async def _tell_each_other(self) -> None:
        await self._publish()
        found = await self.discovery.find(self._session.info.incarnation)
        if not self.reachability.is_away:
            return  # it came back meanwhile, and knows better
        agents = {agent.node_id: agent for agent in found}
        if self.reachability.away_s < STALE_AGENTS_S:
            addresses = {(agent.host, agent.port) for agent in found}
            stale = [each for each in self._view.agents.values() if (each.host, each.port) not in addresses]
            agents = {**{agent.node_id: agent for agent in stale}, **agents}
        own = self._session.info
        agents[own.node_id] = own
        self._view.replace_agents([agent for _, agent in sorted(agents.items())])

    async def withdraw(self) -> None:
        """This agent stops."""
        if self.mode != "off" and self._published_s is not None:
            try:
                await self.discovery.withdraw(self._session.info.incarnation)
            except BraidError as error:
                log.warning("this agent's notice is left in the bucket", error=str(error))
