"""The options of a `BlobShuffle`."""

from collections.abc import Sequence
from dataclasses import dataclass

from braidlog.spark.shuffle.caches import ShuffleCache
from braidlog.spark.shuffle.expiry.expire import RETENTION_S_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleOptions:
    """The options of a shuffle, which all have defaults.

    A size is a number of bytes or text such as "16MiB". A time is a number of seconds or text such as "5s".
    """

    zones: Sequence[str] = ()
    """The zones in which executors run. Batches are formed for each of them."""
    zone: str | None = None
    """The zone of every executor. By default, each takes its own from the variable BRAIDLOG_ZONE, which
    spark.executorEnv.BRAIDLOG_ZONE sets."""
    batch_bytes: int | str = "16MiB"
    batch_interval: float | str = "5s"
    """How long a batch may wait for more rows."""
    compression: str = "lz4"
    """none, lz4 or zstd, for the rows of each partition."""
    uploads_in_flight: int = 4
    """Uploads that one task may have under way."""
    read_ahead: int | str = "64MiB"
    """Bytes that one task may read before they are needed."""
    cache: ShuffleCache | None = None
    """The caches of the nodes. By default each has one of 256 MiB, and the nodes of a zone read for each other; with a
    folder as the store there is none, because it has no requests to save."""
    shared: bool | None = None
    """Whether the tasks of a node fill batches together, through a process beside them: all rows that do not fill a
    batch of one task within its interval. By default they do, except with a folder as the store."""
    share_wait: float | str = "1s"
    """How long a finished task waits for others to fill a batch together. Its slot is idle meanwhile."""
    retention: float | str = RETENTION_S_DEFAULT
    """The retention that `braid shuffle expire` is run with. The application writes its heartbeat several times
    within it."""
    job: str | None = None
    """Names the application's batches in the store. Random by default."""
