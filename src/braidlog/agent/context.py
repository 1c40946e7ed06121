"""What a handler is given beside the request itself."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from braidlog.wire.messages import Answer, answer_for

if TYPE_CHECKING:
    from braidlog.agent.agent import Agent


@dataclass(slots=True)
class RequestContext:
    """One request's surroundings: the agent that serves it, and who asks."""

    agent: "Agent"
    api_key: int
    version: int
    client_id: str
    client_host: str

    @property
    def answer(self) -> Answer:
        """Builds response entities of the request's own version."""
        return answer_for(self.api_key, self.version)
