"""The services of the handlers that serve topics and partitions."""

from dataclasses import dataclass
from typing import TypeAlias

from braidlog.agent.apis.context import RequestContext
from braidlog.agent.cluster.session import AgentSession
from braidlog.agent.cluster.view import ClusterView
from braidlog.control.interface import ControlPlane
from braidlog.runtime.settings import AgentSettings


@dataclass(frozen=True, slots=True)
class TopicServices:
    control: ControlPlane
    view: ClusterView
    session: AgentSession
    settings: AgentSettings


TopicContext: TypeAlias = RequestContext[TopicServices]
