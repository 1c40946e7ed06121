"""The agent's session with the control plane: node id, heartbeats, write epoch."""

from collections.abc import Callable

import structlog

from braidlog.control.agents import NodeIdTaken
from braidlog.control.interface import (
    AgentHeartbeat,
    AgentInfo,
    AgentLeave,
    ControlPlane,
    HeartbeatAnswer,
    RegisterAgent,
)
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError

log = structlog.get_logger(__name__)

CALL_TIMEOUT_S = 5.0


class AgentSession:
    """Registers the agent and keeps it registered.

    An agent that loses its session is only missing from clients' metadata. It still accepts writes, and the sequencer
    refuses objects whose write epoch has become too old.
    """

    def __init__(
        self,
        control: ControlPlane,
        clock: Clock,
        entropy: Entropy,
        incarnation: str,
        zone: str,
        *,
        call_timeout_s: float = CALL_TIMEOUT_S,
        journals: bool = False,
        on_heard: Callable[[HeartbeatAnswer], None] = lambda answer: None,
    ) -> None:
        """`on_heard` gets every answer of a control plane that knows this agent.

        With `journals`, this agent may write journals that the control plane does not hear of from it.
        """
        self._control = control
        self._clock = clock
        self._entropy = entropy
        self._incarnation = incarnation
        self._zone = zone
        self._journals = journals
        self._call_timeout_s = min(call_timeout_s, CALL_TIMEOUT_S)
        self._address = ("", 0, "")
        self.listeners: dict[str, tuple[str, int]] = {}
        """The host and port of each listener, by name."""
        self._heartbeat_interval_s = 1.0
        self.node_id = -1
        self.write_epoch = -1
        self.is_registered = False
        """Whether the control plane knows this agent, according to its last answer."""
        self._node_id_is_assumed = False
        self._on_heard = on_heard

    @property
    def has_write_epoch(self) -> bool:
        """True from the first registration on.

        If the epoch becomes too old, the sequencer refuses it.
        """
        return self.write_epoch >= 0

    @property
    def info(self) -> AgentInfo:
        """This agent as others see it."""
        host, port, cache_address = self._address
        return AgentInfo(self.node_id, self._incarnation, host, port, self._zone, cache_address, self.listeners)

    def assume(self, host: str, port: int, node_id: int, cache_address: str = "") -> None:
        """Assume a node id while there is no control plane to register with.

        `run` registers later.
        """
        self._address = (host, port, cache_address)
        self.node_id = node_id
        self._node_id_is_assumed = True

    async def register(self, host: str, port: int, cache_address: str = "") -> None:
        self._address = (host, port, cache_address)
        answer = await self._control.register_agent(
            RegisterAgent(
                self._incarnation,
                host,
                port,
                self._zone,
                self.node_id,
                cache_address,
                self._journals,
                self.listeners,
            ),
            timeout_s=self._call_timeout_s,
        )
        self.node_id = answer.node_id
        self.write_epoch = answer.write_epoch
        self._heartbeat_interval_s = answer.heartbeat_interval_ms / 1000
        self.is_registered = True
        self._node_id_is_assumed = False

    async def run(self) -> None:
        """Send heartbeats for ever, and register again if forgotten."""
        while True:
            await self._clock.sleep(self._heartbeat_interval_s * self._entropy.uniform(0.8, 1.0))
            try:
                await self._be_heard()
            except BraidError as error:
                log.warning("heartbeat failed", error=str(error), help=error.help)
            except Exception as error:
                # Whatever it is, continue: without heartbeats the write epoch would stand still.
                log.error("heartbeat failed with an unexpected error", exc_info=error)

    async def _be_heard(self) -> None:
        answer = await self._control.heartbeat_agent(AgentHeartbeat(self._incarnation), timeout_s=self._call_timeout_s)
        if not answer.known:
            self.is_registered = False
        if not self.is_registered:  # also if it is known, because the answer to its registration was lost
            await self._register_again()
            return
        self.write_epoch = answer.write_epoch
        self._on_heard(answer)

    async def _register_again(self) -> None:
        try:
            await self.register(*self._address)
        except NodeIdTaken:
            if not self._node_id_is_assumed:
                raise
            log.warning("the assumed node id belongs to another agent", node_id=self.node_id)
            self.node_id = -1
            await self.register(*self._address)

    async def leave(self) -> None:
        try:
            await self._control.leave_agent(AgentLeave(self._incarnation), timeout_s=CALL_TIMEOUT_S)
        except BraidError as error:
            log.warning("the control plane could not be told that this agent leaves", error=str(error))
