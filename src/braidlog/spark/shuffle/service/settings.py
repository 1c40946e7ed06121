"""What the tasks of a node and the process beside them agree on."""

from dataclasses import dataclass, field

from braidlog.spark.shuffle.batcher import BatcherSettings
from braidlog.spark.shuffle.caches import NO_CACHE, ShuffleCache

IDLE_S_MAX = 60.0
SHARE_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class RingSettings:
    secret: str = field(repr=False)
    """Known to the processes of the application alone."""
    route_to: str
    """A host that all nodes reach: the driver. A node's address is the one that it reaches this host from."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings of a node's service.

    Tasks with other settings have a service of their own.
    """

    store_url: str
    batcher: BatcherSettings
    share_wait_s: float = SHARE_WAIT_S
    """How long a finished task waits for others to fill its batch."""
    cache: ShuffleCache = NO_CACHE
    ring: RingSettings | None = None
    """None: this node reads for itself alone."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    node: NodeSettings
    socket_path: str
    idle_s_max: float = IDLE_S_MAX
