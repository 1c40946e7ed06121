"""Who is let in while the control plane is away or slow, and how long those that are not should wait.

What needs the control plane is refused at once and told to wait a little, so that clients that try again and again do
not take the agent from those that it can serve. Their connections are not read meanwhile, whether they listen or not.
"""

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kio.static.primitive import i32Timedelta

from braidlog.agent.connection import KafkaConnection
from braidlog.agent.view import TopicView

if TYPE_CHECKING:
    from braidlog.agent.agent import Agent

THROTTLE_S = 1.0
"""On average. Clients' own backoff is a tenth of it to begin with."""
DOUBTFUL_MEMORY_SHARE = 0.5
"""While the control plane does not answer, and is not yet known to be away, classic writes wait for it. They may fill
so much of the memory, and leave the rest to what is journaled."""


class Admission:
    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self._entropy = agent.entropy.fork("admission")
        self.refused_writes = 0
        self.refused_reads = 0
        self.shaped = 0
        """Answers that told a client to wait."""

    def takes(self, topic: TopicView, is_transactional: bool) -> bool:
        """Whether a batch can be written now: it is journaled, or the control plane is there to sequence it."""
        reachability = self._agent.reachability
        if not reachability.is_doubtful:
            return True
        if topic.settings.is_lightning or (self._agent.ripcord.journals_all and not is_transactional):
            return True
        memory = self._agent.memory
        is_crowded = memory.used_bytes > memory.bytes_max * DOUBTFUL_MEMORY_SHARE
        return not reachability.is_away and not is_crowded

    def throttle_s(self) -> float:
        """Different for everybody, so that they do not all come back at once."""
        self.shaped += 1
        return THROTTLE_S * self._entropy.uniform(0.5, 1.5)

    def shape(self, answer: Any) -> Any:
        """An answer of a cold API, which its client should not ask for again at once."""
        if not hasattr(answer, "throttle_time"):
            return answer
        throttle = timedelta(milliseconds=round(self.throttle_s() * 1000))
        return replace(answer, throttle_time=i32Timedelta.parse(throttle))

    def hold_off(self, connection: KafkaConnection) -> int:
        """Read nothing from a client for a while. Returns what to tell it, in milliseconds."""
        throttle_s = self.throttle_s()
        connection.mute(throttle_s)
        return round(throttle_s * 1000)
