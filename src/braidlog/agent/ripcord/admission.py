"""Decides which requests are served while the control plane is away or slow.

It also decides how long the others should wait.

A request that needs the control plane is refused at once, and its client is told to wait. So clients that try again and
again do not take the agent's time from those that it can serve. Their connections are not read meanwhile, whether they
obey or not.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from kio.static.primitive import i32Timedelta

from braidlog.agent.cluster.view import TopicView
from braidlog.agent.connections.connection import KafkaConnection
from braidlog.agent.connections.request_memory import RequestMemory
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.agent.ripcord.ripcord import Ripcord
from braidlog.runtime.entropy import Entropy

THROTTLE_S = 1.0
"""The average wait. Clients' own backoff begins with a tenth of it."""
DOUBTFUL_MEMORY_SHARE = 0.5
"""While the control plane does not answer, and is not yet known to be away, classic writes wait for it. They may fill
this share of request memory, and leave the rest to journaled writes."""


class Admission:
    """Admits writes, and shapes the answers to clients that have to wait."""

    def __init__(
        self, reachability: Reachability, ripcord: Ripcord, request_memory: RequestMemory, entropy: Entropy
    ) -> None:
        self._reachability = reachability
        self._ripcord = ripcord
        self._request_memory = request_memory
        self._entropy = entropy
        self.refused_writes = 0
        self.refused_reads = 0
        self.shaped = 0
        """How many answers told a client to wait."""

    def takes(self, topic: TopicView, is_transactional: bool) -> bool:
        """Whether a batch can be written now.

        Either it is journaled, or the control plane can sequence it.
        """
        reachability = self._reachability
        if not reachability.is_doubtful:
            return True
        if topic.settings.is_lightning or (self._ripcord.journals_all and not is_transactional):
            return True
        memory = self._request_memory
        is_crowded = memory.used_bytes > memory.bytes_max * DOUBTFUL_MEMORY_SHARE
        return not reachability.is_away and not is_crowded

    def throttle_s(self) -> float:
        """How long a client should wait.

        The time is random, so that clients do not all come back at once.
        """
        self.shaped += 1
        return THROTTLE_S * self._entropy.uniform(0.5, 1.5)

    def shape(self, answer: Any) -> Any:
        """An answer of a cold API that also tells the client to wait before it asks again."""
        if not hasattr(answer, "throttle_time"):
            return answer
        throttle = timedelta(milliseconds=round(self.throttle_s() * 1000))
        return replace(answer, throttle_time=i32Timedelta.parse(throttle))

    def hold_off(self, connection: KafkaConnection) -> int:
        """Read nothing from a client for a while.

        Returns how long it should wait, in milliseconds.
        """
        throttle_s = self.throttle_s()
        connection.mute(throttle_s)
        return round(throttle_s * 1000)
