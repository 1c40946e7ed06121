"""How agents register, stay and leave."""

from typing import Protocol

from braidlog.control.interface.base import Message


class RegisterAgent(Message, frozen=True):
    incarnation: str
    host: str
    port: int
    zone: str
    node_id: int = -1
    """-1: the node id that this address had last, or the next free one."""
    cache_address: str = ""
    """Where other agents of its zone read what it has in its cache; empty: they do not."""
    journals: bool = False
    """It may write journals that nobody has told the control plane of."""


class Registered(Message, frozen=True):
    node_id: int
    cluster_id: str
    write_epoch: int
    fencing_epoch: int
    heartbeat_interval_ms: int


class AgentHeartbeat(Message, frozen=True):
    incarnation: str


class HeartbeatAnswer(Message, frozen=True):
    known: bool
    """False: register again."""
    write_epoch: int
    """Objects that are named from now on carry this epoch."""
    fencing_epoch: int
    scans_replayed: int = 0
    """What was journaled before the request for a scan of this number, or a lower one, is sequenced."""


class AgentLeave(Message, frozen=True):
    incarnation: str


class FenceAgent(Message, frozen=True):
    """Nothing that this agent has uploaded is sequenced any more: it has died, and somebody must be certain of it."""

    incarnation: str


class Done(Message, frozen=True):
    pass


class AgentPlane(Protocol):
    async def register_agent(self, request: RegisterAgent, *, timeout_s: float | None = None) -> Registered: ...
    async def heartbeat_agent(self, request: AgentHeartbeat, *, timeout_s: float | None = None) -> HeartbeatAnswer: ...
    async def leave_agent(self, request: AgentLeave, *, timeout_s: float | None = None) -> Done: ...
    async def fence_agent(self, request: FenceAgent, *, timeout_s: float | None = None) -> Done: ...
