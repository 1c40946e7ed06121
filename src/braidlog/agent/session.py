"""The agent's standing with the control plane: its node id, its heartbeat, and the write epoch it may use."""

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
    """Losing the session costs nothing but the place in clients' metadata: writes are still accepted, and the sequencer
    refuses objects whose write epoch has become too old."""

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
    ) -> None:
        """`journals`: this agent may journal what the control plane never hears of from itself."""
        self._control = control
        self._clock = clock
        self._entropy = entropy
        self._incarnation = incarnation
        self._zone = zone
        self._journals = journals
        self._call_timeout_s = min(call_timeout_s, CALL_TIMEOUT_S)
        self._address = ("", 0, "")
        self._heartbeat_interval_s = 1.0
        self.node_id = -1
        self.write_epoch = -1
        self.is_registered = False
        """Whether the control plane knows this agent, as far as it has said."""
        self._node_id_is_assumed = False
        self.on_heard: Callable[[HeartbeatAnswer], None] = lambda answer: None
        """Called with every answer of a control plane that knows this agent."""

    @property
    def has_write_epoch(self) -> bool:
        """From the first registration on, and whatever becomes of it: an epoch that is too old is refused elsewhere."""
        return self.write_epoch >= 0

    @property
    def info(self) -> AgentInfo:
        """As others see this agent."""
        host, port, cache_address = self._address
        return AgentInfo(self.node_id, self._incarnation, host, port, self._zone, cache_address)

    def assume(self, host: str, port: int, node_id: int, cache_address: str = "") -> None:
        """Be somebody while nobody is there to register with; `run` does so later."""
        self._address = (host, port, cache_address)
        self.node_id = node_id
        self._node_id_is_assumed = True

    async def register(self, host: str, port: int, cache_address: str = "") -> None:
        self._address = (host, port, cache_address)
        answer = await self._control.register_agent(
            RegisterAgent(self._incarnation, host, port, self._zone, self.node_id, cache_address, self._journals),
            timeout_s=self._call_timeout_s,
        )
        self.node_id = answer.node_id
        self.write_epoch = answer.write_epoch
        self._heartbeat_interval_s = answer.heartbeat_interval_ms / 1000
        self.is_registered = True
        self._node_id_is_assumed = False

    async def run(self) -> None:
        """Heartbeat for ever, and register again where the control plane has forgotten this agent."""
        while True:
            await self._clock.sleep(self._heartbeat_interval_s * self._entropy.uniform(0.8, 1.0))
            try:
                await self._be_heard()
            except BraidError as error:
                log.warning("heartbeat failed", error=str(error), help=error.help)
            except Exception as error:
                # Whatever it is: without heartbeats the write epoch would stand still.
                log.error("heartbeat failed in an unforeseen way", exc_info=error)

    async def _be_heard(self) -> None:
        answer = await self._control.heartbeat_agent(AgentHeartbeat(self._incarnation), timeout_s=self._call_timeout_s)
        if not answer.known:
            self.is_registered = False
        if not self.is_registered:  # though it may be known, where the answer to its registration was lost
            await self._register_again()
            return
        self.write_epoch = answer.write_epoch
        self.on_heard(answer)

    async def _register_again(self) -> None:
        try:
            await self.register(*self._address)
        except NodeIdTaken:
            if not self._node_id_is_assumed:
                raise
            log.warning("the node id that was assumed belongs to another agent", node_id=self.node_id)
            self.node_id = -1
            await self.register(*self._address)

    async def leave(self) -> None:
        try:
            await self._control.leave_agent(AgentLeave(self._incarnation), timeout_s=CALL_TIMEOUT_S)
        except BraidError as error:
            log.warning("could not say goodbye to the control plane", error=str(error))
