"""Agents: how they register, send heartbeats and leave."""

from typing import Protocol

import msgspec

from braidlog.control.interface.base import Message


class RegisterAgent(Message, frozen=True):
    incarnation: str
    host: str
    port: int
    zone: str
    node_id: int = -1
    """-1: the last node id of this address, or the next free one."""
    cache_address: str = ""
    """Where other agents of its zone read its cache; empty: they do not."""
    journals: bool = False
    """Whether it may write journals without telling the control plane."""
    listeners: dict[str, tuple[str, int]] = msgspec.field(default_factory=dict)
    """The host and port of each listener, by name."""


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
    """The write epoch for the keys of new objects."""
    fencing_epoch: int
    scans_replayed: int = 0
    """Everything journaled before the request for this scan, or an earlier one, is sequenced."""


class AgentLeave(Message, frozen=True):
    incarnation: str


class FenceAgent(Message, frozen=True):
    """Sequence no more objects of this agent.

    It has died, and somebody must be certain of that.
    """

    incarnation: str


class Done(Message, frozen=True):
    pass


class AgentPlane(Protocol):
    async def register_agent(self, request: RegisterAgent, *, timeout_s: float | None = None) -> Registered: ...
    async def heartbeat_agent(self, request: AgentHeartbeat, *, timeout_s: float | None = None) -> HeartbeatAnswer: ...
    async def leave_agent(self, request: AgentLeave, *, timeout_s: float | None = None) -> Done: ...
    async def fence_agent(self, request: FenceAgent, *, timeout_s: float | None = None) -> Done: ...
