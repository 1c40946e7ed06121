"""A shuffle through the object store: records travel in large objects, and only notifications between tasks.

Nothing but `BlobShuffle` needs Spark: batcher and debatcher carry any Arrow rows.
"""

from braidlog.spark.shuffle.blob_shuffle import BlobShuffle
from braidlog.spark.shuffle.caching import ShuffleCache

__all__ = ["BlobShuffle", "ShuffleCache"]
