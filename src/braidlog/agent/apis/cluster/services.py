"""The services of the handlers that describe the cluster."""

from dataclasses import dataclass
from typing import TypeAlias

from braidlog.agent.apis.context import RequestContext
from braidlog.agent.cluster.view import ClusterView
from braidlog.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class ClusterServices:
    view: ClusterView
    clock: Clock


ClusterContext: TypeAlias = RequestContext[ClusterServices]
