"""The registry of agents: node ids, addresses, and silent agents."""

from dataclasses import dataclass

import msgspec

from braidlog.control.foundation import Foundation
from braidlog.control.interface import (
    AgentChanged,
    AgentHeartbeat,
    AgentInfo,
    AgentLeave,
    AgentRemoved,
    AgentStatus,
    RegisterAgent,
)
from braidlog.control.metadata.store import Transaction
from braidlog.runtime.errors import BraidError, Remedy

AGENTS_MAX = 10_000
NODE_IDS_KEPT_MS = 7 * 24 * 60 * 60 * 1000
"""How long an unused address keeps its node id."""

_LISTENERS = msgspec.json.Decoder(dict[str, tuple[str, int]])


class NodeIdTaken(BraidError):
    """The node id belongs to another agent that is alive."""

    remedy = Remedy.FIX_INPUT


class TooManyAgents(BraidError):
    """The registry is full."""

    remedy = Remedy.RETRY


@dataclass(slots=True, eq=False)
class _Session:
    info: AgentInfo
    deadline_s: float
    feed_revision: int = -1
    """The newest change of the feed that it has seen; -1: it has not asked for any."""


class AgentRegistry:
    """Knows the agents.

    Sessions are in memory; node ids and addresses are durable, and outlive a restart.
    """

    def __init__(self, foundation: Foundation, *, heartbeat_interval_s: float, session_timeout_s: float) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._feed = foundation.feed
        self._clock = foundation.clock
        self._session_timeout_s = session_timeout_s
        self.heartbeat_interval_s = heartbeat_interval_s
        self._sessions: dict[int, _Session] = {}
        """The sessions of live agents, by node id."""
        self._node_ids: dict[str, int] = {}
        """The node id of each incarnation."""

    async def load(self) -> None:
        """Load the agents.

        Those that were alive get a full session timeout, counted from now, to report.
        """
        rows = await self._metadata.read(
            lambda tx: tx.query(
                "SELECT node_id, incarnation, host, port, zone, cache_address, listeners FROM agents"
                " WHERE left_ms IS NULL ORDER BY node_id"
            )
        )
        for node_id, incarnation, host, port, zone, cache_address, listeners in rows:
            others = _LISTENERS.decode(listeners)
            self._put(AgentInfo(node_id, incarnation, host, port, zone, cache_address, others))

    @property
    def agents(self) -> list[AgentInfo]:
        return [self._sessions[node_id].info for node_id in sorted(self._sessions)]

    async def register(self, request: RegisterAgent) -> AgentInfo:
        async with self._state_lock:
            if len(self._sessions) >= AGENTS_MAX:
                raise TooManyAgents(f"{AGENTS_MAX} agents are registered", help="Agents that have stopped expire soon.")
            alive = frozenset(
                node_id
                for node_id, session in self._sessions.items()
                if (session.info.host, session.info.port) != (request.host, request.port)
            )
            if request.node_id in alive:
                raise NodeIdTaken(
                    f"node id {request.node_id} belongs to another agent that is alive",
                    help="Give each agent a node id of its own, or none: then it gets one.",
                )
            info = await self._metadata.plan(lambda tx: _write_agent(tx, request))
            for node_id in [
                node_id
                for node_id, session in self._sessions.items()
                if (session.info.host, session.info.port) == (info.host, info.port)
                or session.info.incarnation == info.incarnation
            ]:
                self._drop(node_id)
                if node_id != info.node_id:
                    self._feed.publish([AgentRemoved(node_id)])
            self._put(info)
            self._feed.publish([AgentChanged(info)])
            return info

    def heartbeat(self, request: AgentHeartbeat) -> bool:
        """Note a heartbeat.

        Returns whether the agent is known; if not, it must register again.
        """
        node_id = self._node_ids.get(request.incarnation)
        if node_id is None:
            return False
        self._sessions[node_id].deadline_s = self._clock.monotonic_s() + self._session_timeout_s
        return True

    def note_feed(self, incarnation: str, revision: int) -> None:
        """Note how far an agent has read the feed."""
        node_id = self._node_ids.get(incarnation)
        if node_id is not None:
            self._sessions[node_id].feed_revision = revision

    def statuses(self, feed_revision: int) -> list[AgentStatus]:
        """Return each agent with its last heartbeat and its lag behind the feed."""
        now_s = self._clock.monotonic_s()
        found: list[AgentStatus] = []
        for node_id in sorted(self._sessions):
            session = self._sessions[node_id]
            heard_s_ago = now_s - (session.deadline_s - self._session_timeout_s)
            lag = max(0, feed_revision - session.feed_revision) if session.feed_revision >= 0 else -1
            found.append(AgentStatus(session.info, max(0, int(heard_s_ago * 1000)), lag))
        return found

    async def leave(self, request: AgentLeave) -> None:
        async with self._state_lock:
            node_id = self._node_ids.get(request.incarnation)
            if node_id is not None:
                await self._remove([node_id])

    async def expire_once(self) -> int:
        """Remove agents that sent no heartbeat for the session timeout. Returns how many."""
        async with self._state_lock:
            now_s = self._clock.monotonic_s()
            silent = [node_id for node_id, session in self._sessions.items() if session.deadline_s <= now_s]
            if silent:
                await self._remove(silent)
            return len(silent)

    async def _remove(self, node_ids: list[int]) -> None:
        now_ms = self._clock.wall_ms()

        def write(tx: Transaction) -> None:
            tx.executemany("UPDATE agents SET left_ms = ? WHERE node_id = ?", [(now_ms, each) for each in node_ids])
            tx.execute("DELETE FROM agents WHERE left_ms < ?", (now_ms - NODE_IDS_KEPT_MS,))

        await self._metadata.plan(write)
        for node_id in node_ids:
            self._drop(node_id)
        self._feed.publish([AgentRemoved(node_id) for node_id in node_ids])

    def _put(self, info: AgentInfo) -> None:
        self._sessions[info.node_id] = _Session(info, self._clock.monotonic_s() + self._session_timeout_s)
        self._node_ids[info.incarnation] = info.node_id

    def _drop(self, node_id: int) -> None:
        session = self._sessions.pop(node_id)
        self._node_ids.pop(session.info.incarnation, None)


def _write_agent(tx: Transaction, request: RegisterAgent) -> AgentInfo:
    known = tx.query("SELECT node_id FROM agents WHERE host = ? AND port = ?", (request.host, request.port))
    node_id = request.node_id
    if node_id < 0:
        node_id = known[0][0] if known else _free_node_id(tx)
    tx.execute(
        "DELETE FROM agents WHERE node_id = ? OR incarnation = ? OR (host = ? AND port = ?)",
        (node_id, request.incarnation, request.host, request.port),
    )
    row = (node_id, request.incarnation, request.host, request.port, request.zone, request.cache_address)
    tx.execute(
        "INSERT INTO agents (node_id, incarnation, host, port, zone, cache_address, listeners)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*row, msgspec.json.encode(request.listeners).decode()),
    )
    return AgentInfo(*row, request.listeners)


def _free_node_id(tx: Transaction) -> int:
    """Return the lowest node id that no address has: small numbers are easy to read."""
    taken = {row[0] for row in tx.query("SELECT node_id FROM agents")}
    return next(number for number in range(1, len(taken) + 2) if number not in taken)
