"""The services of the handlers that serve producers and transactions."""

from dataclasses import dataclass
from typing import TypeAlias

from braidlog.agent.apis.context import RequestContext
from braidlog.agent.cluster.session import AgentSession
from braidlog.agent.cluster.view import ClusterView
from braidlog.agent.ripcord.producer_ids import ProducerIds
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.control.interface import ControlPlane


@dataclass(frozen=True, slots=True)
class TransactionServices:
    control: ControlPlane
    view: ClusterView
    session: AgentSession
    reachability: Reachability
    producer_ids: ProducerIds


TransactionContext: TypeAlias = RequestContext[TransactionServices]
