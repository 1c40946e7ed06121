"""The services of the handlers that serve configs and quotas."""

from dataclasses import dataclass
from typing import TypeAlias

from braidlog.agent.apis.context import RequestContext
from braidlog.agent.cluster.session import AgentSession
from braidlog.agent.cluster.view import ClusterView
from braidlog.control.interface import ControlPlane
from braidlog.runtime.settings import AgentSettings


@dataclass(frozen=True, slots=True)
class ConfigServices:
    control: ControlPlane
    view: ClusterView
    session: AgentSession
    settings: AgentSettings


ConfigContext: TypeAlias = RequestContext[ConfigServices]
