"""The agent's standing with the control plane: its node id, its heartbeat, and the write epoch it may use."""

import structlog

from braidlog.control.interface import AgentHeartbeat, AgentLeave, ControlPlane, RegisterAgent
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError

log = structlog.get_logger(__name__)

CALL_TIMEOUT_S = 5.0


class AgentSession:
    """Losing the session costs nothing but the place in clients' metadata: writes are still accepted, and the sequencer
    refuses objects whose write epoch has become too old."""

    def __init__(self, control: ControlPlane, clock: Clock, entropy: Entropy, incarnation: str, zone: str) -> None:
        self._control = control
        self._clock = clock
        self._entropy = entropy
        self._incarnation = incarnation
        self._zone = zone
        self._address = ("", 0, "")
        self._heartbeat_interval_s = 1.0
        self.node_id = -1
        self.write_epoch = -1
        self.is_registered = False

    async def register(self, host: str, port: int, cache_address: str = "") -> None:
        self._address = (host, port, cache_address)
        answer = await self._control.register_agent(
            RegisterAgent(self._incarnation, host, port, self._zone, self.node_id, cache_address),
            timeout_s=CALL_TIMEOUT_S,
        )
        self.node_id = answer.node_id
        self.write_epoch = answer.write_epoch
        self._heartbeat_interval_s = answer.heartbeat_interval_ms / 1000
        self.is_registered = True

    async def run(self) -> None:
        """Heartbeat for ever, and register again where the control plane has forgotten this agent."""
        while True:
            await self._clock.sleep(self._heartbeat_interval_s * self._entropy.uniform(0.8, 1.0))
            try:
                answer = await self._control.heartbeat_agent(
                    AgentHeartbeat(self._incarnation), timeout_s=CALL_TIMEOUT_S
                )
                if answer.known:
                    self.write_epoch = answer.write_epoch
                else:
                    await self.register(*self._address)
            except BraidError as error:
                log.warning("heartbeat failed", error=str(error), help=error.help)

    async def leave(self) -> None:
        try:
            await self._control.leave_agent(AgentLeave(self._incarnation), timeout_s=CALL_TIMEOUT_S)
        except BraidError as error:
            log.warning("could not say goodbye to the control plane", error=str(error))
