"""A shuffle through the object store.

Rows travel in large objects. Only notifications travel between tasks. Only `BlobShuffle` needs Spark. The batcher and
the debatcher carry any Arrow rows, and `Publisher` and `Subscriber` use them without Spark. This package exports the
public names.
"""

from braidlog.spark.shuffle.batcher import BatcherSettings
from braidlog.spark.shuffle.blob_shuffle import BlobShuffle
from braidlog.spark.shuffle.caches import ShuffleCache
from braidlog.spark.shuffle.debatcher import DebatcherSettings
from braidlog.spark.shuffle.options import ShuffleOptions
from braidlog.spark.shuffle.pubsub import Publisher, Subscriber

__all__ = [
    "BatcherSettings",
    "BlobShuffle",
    "DebatcherSettings",
    "Publisher",
    "ShuffleCache",
    "ShuffleOptions",
    "Subscriber",
]
