"""Ripcord: how an agent survives an outage of the control plane.

An agent can also start during one. Ripcord has three modes. `on` journals every topic all the time, so that an outage
changes nothing. `auto` does so from the moment at which the control plane is known to be away, until every journal
written before its return is sequenced. `off` leaves topics as they are configured: in an outage, writes to journaled
topics go on, and others are refused, so that clients try again.
"""

import structlog

from braidlog.agent.cluster.session import AgentSession
from braidlog.agent.cluster.view import ClusterView
from braidlog.agent.ripcord.discovery import ALIVE_MS, PUBLISH_INTERVAL_S, AgentNotice, Discovery
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.agent.ripcord.replay_wait import ReplayWait
from braidlog.agent.ripcord.snapshot import SnapshotKeeper, snapshot_of
from braidlog.control.interface import AgentInfo
from braidlog.objects.store import NotFound, Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, ControlUnavailable

log = structlog.get_logger(__name__)

TICK_S = 1.0
CALM_PUBLISH_INTERVAL_S = 600.0
"""How often an agent publishes itself without an outage. Only an agent that starts in an outage needs it."""
SNAPSHOT_INTERVAL_S = 5.0
"""A change is in the bucket at most this much later, plus the time of a write."""
STALE_AGENTS_S = ALIVE_MS / 1000 + PUBLISH_INTERVAL_S
"""For this long, agents that the control plane named last are still named: they may not have noticed the outage."""
NODE_IDS_FROM, NODE_IDS_END = 1_000_000_000, 2_000_000_000
"""The range of node ids from which an unknown agent takes one while the control plane cannot give it one."""


class Ripcord:
    """Decides when all topics are journaled, and keeps agents known to each other."""

    def __init__(
        self,
        mode: str,
        replay_wait: ReplayWait,
        reachability: Reachability,
        session: AgentSession,
        view: ClusterView,
        store: Store,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.mode = mode
        self._replay_wait = replay_wait
        self.reachability = reachability
        self._session = session
        self._view = view
        self._clock = clock
        self._entropy = entropy
        self.discovery = Discovery(store)
        self.snapshots = SnapshotKeeper(store)
        reachability.on_away.append(self.await_replay)
        self._published_s: float | None = None
        self._published_state = ""
        self._offered_s: float | None = None

    @property
    def state(self) -> str:
        if self.reachability.is_away:
            return "away"
        return "present" if self._replay_wait.is_over or self.mode == "off" else "returning"

    @property
    def journals_all(self) -> bool:
        """Whether all topics are journaled now, and not only those that always are."""
        if self.mode == "auto":
            # An assumed session has no write epoch, so nothing but journals can be written.
            return self.reachability.is_away or not self._replay_wait.is_over or not self._session.has_write_epoch
        return self.mode == "on"

    def await_replay(self) -> None:
        """Keep all topics journaled until everything journaled now is sequenced."""
        self._replay_wait.begin()

    # ── starting without the control plane ──

    async def start_alone(self, host: str, port: int, cache_address: str) -> None:
        """Start without the control plane, from the agents' snapshot in the bucket."""
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
        # At once, not with the first tick: clients that were sent here should find this agent in the metadata.
        await self._meet_others()

    def _free_node_id(self, known: list[AgentInfo]) -> int:
        taken = frozenset(agent.node_id for agent in known)
        while True:
            node_id = NODE_IDS_FROM + self._entropy.below(NODE_IDS_END - NODE_IDS_FROM)
            if node_id not in taken:
                return node_id

    # ── while it runs ──

    async def run(self) -> None:
        """Publish this agent, find others in an outage, and update the snapshot.

        The snapshot is kept up to date only outside of outages.
        """
        while True:
            await self._clock.sleep(TICK_S * self._entropy.uniform(0.8, 1.2))
            try:
                await self._tick()
            except BraidError as error:
                log.warning(
                    "agents could not be published to or read from the bucket", error=str(error), help=error.help
                )
            except Exception as error:
                # Whatever it is, continue: an outage may be the next thing to happen.
                log.error("agents could not be published to or read from the bucket: unexpected error", exc_info=error)

    async def _tick(self) -> None:
        now_s = self._clock.monotonic_s()
        if self.reachability.is_away:
            if self._is_due(self._published_s, now_s, PUBLISH_INTERVAL_S) or self._published_state != "away":
                await self._meet_others()
            return
        if not self._session.has_write_epoch:
            return
        if not self._replay_wait.is_asked and self.state == "returning":
            await self._replay_wait.ask()
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

    async def _meet_others(self) -> None:
        await self._publish()
        found = await self.discovery.find(self._session.info.incarnation)
        if not self.reachability.is_away:
            return  # the control plane is back, and knows better
        agents = {agent.node_id: agent for agent in found}
        if self.reachability.away_s < STALE_AGENTS_S:
            addresses = {(agent.host, agent.port) for agent in found}
            stale = [each for each in self._view.agents.values() if (each.host, each.port) not in addresses]
            agents = {**{agent.node_id: agent for agent in stale}, **agents}
        own = self._session.info
        agents[own.node_id] = own
        self._view.replace_agents([agent for _, agent in sorted(agents.items())])

    async def withdraw(self) -> None:
        """Delete this agent's notice, because it stops."""
        if self.mode != "off" and self._published_s is not None:
            try:
                await self.discovery.withdraw(self._session.info.incarnation)
            except BraidError as error:
                log.warning("this agent's notice could not be deleted from the bucket", error=str(error))
