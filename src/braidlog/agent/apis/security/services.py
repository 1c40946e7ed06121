"""The services of the handlers that serve ACLs and credentials."""

from dataclasses import dataclass
from typing import TypeAlias

from braidlog.agent.apis.context import RequestContext
from braidlog.agent.cluster.view import ClusterView
from braidlog.control.interface import ControlPlane
from braidlog.security.rights import Authorizer


@dataclass(frozen=True, slots=True)
class SecurityServices:
    control: ControlPlane
    view: ClusterView
    authorizer: Authorizer


SecurityContext: TypeAlias = RequestContext[SecurityServices]
