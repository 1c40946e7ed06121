"""The context of a request: what a handler is given beside the request."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from braidlog.runtime.turns import Turns
from braidlog.security.rights import ALL_RIGHTS, Rights
from braidlog.wire.messages import Answer, answer_for

Services_co = TypeVar("Services_co", covariant=True)
"""The services that a handler uses. Each folder of handlers has a class for them."""


@dataclass(frozen=True, slots=True)
class RequestContext(Generic[Services_co]):
    """Who asks, in which version, and the services that help to answer."""

    services: Services_co
    turns: Turns
    """Splits work that grows with the request into slices, so that it holds up nobody."""
    api_key: int
    version: int
    client_id: str
    client_host: str
    rights: Rights = ALL_RIGHTS
    """What the client may do."""
    listener: str = ""
    """The listener that the client uses. It is told the addresses of that listener."""

    @property
    def answer(self) -> Answer:
        """Builds response entities of the request's own version."""
        return answer_for(self.api_key, self.version)
