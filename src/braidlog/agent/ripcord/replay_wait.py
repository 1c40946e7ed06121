"""Waits until everything that was journaled in an outage is sequenced."""

from dataclasses import dataclass

import structlog

from braidlog.agent.cluster.session import CALL_TIMEOUT_S
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.control.interface import AgentHeartbeat, ControlPlane, HeartbeatAnswer, RequestScan

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AwaitedScan:
    number: int
    fencing_epoch: int
    """The epoch of the control plane that was asked. Each control plane counts its scans anew."""


class ReplayWait:
    """Asks the control plane for a scan, and learns when its replays are done.

    Heartbeats say so.
    """

    def __init__(self, control: ControlPlane, reachability: Reachability, incarnation: str) -> None:
        self._control = control
        self._reachability = reachability
        self._incarnation = incarnation
        self._awaited: AwaitedScan | None = None
        self.is_over = True
        """Whether everything that was journaled in outages is sequenced."""

    @property
    def is_asked(self) -> bool:
        """Whether the control plane was asked for a scan that is not done yet."""
        return self._awaited is not None

    def begin(self) -> None:
        """Wait from now on. A scan that was asked for before is too early."""
        self.is_over = False
        self._awaited = None

    async def ask(self) -> None:
        """Ask for a scan.

        From then on, heartbeats say when everything that was journaled so far is sequenced.
        """
        outages = self._reachability.outages
        before = await self._control.heartbeat_agent(AgentHeartbeat(self._incarnation), timeout_s=CALL_TIMEOUT_S)
        asked = await self._control.request_scan(RequestScan(self._incarnation), timeout_s=CALL_TIMEOUT_S)
        if outages == self._reachability.outages and before.known:
            self._awaited = AwaitedScan(asked.scan, before.fencing_epoch)

    def heard(self, answer: HeartbeatAnswer) -> None:
        """Take in the answer to a heartbeat."""
        awaited = self._awaited
        if awaited is None:
            return
        if answer.fencing_epoch != awaited.fencing_epoch:
            self._awaited = None  # another control plane, which does not know of the scan: it has to be asked again
        elif answer.scans_replayed >= awaited.number:
            log.info("every journal of the outage is sequenced", scan=awaited.number)
            self.is_over = True
            self._awaited = None
