"""The process that Spark's Python workers are forked from, with all that they need already loaded.

Spark starts it as a module (`spark.python.daemon.module`). Each worker would otherwise load Arrow, numba and the
compiled record codec by itself, which takes seconds, and its garbage collector would look through them again and again.
A process must not have threads when it forks, so what would start some is told not to.
"""

import gc
import os
import sys
import threading
from importlib import import_module
from importlib.machinery import PathFinder

from braidlog.runtime.allocator import keep_freed_memory

PRELOADED = (
    "pandas",  # Spark's workers import it, used or not
    "pyarrow.compute",
    "pyspark.worker",
    "braidlog.spark.datasource",
    "braidlog.spark.source",
    "braidlog.spark.reading",
    "braidlog.spark.shuffle.tasks",
    "braidlog.spark.shuffle.aggregating",
    "braidlog.spark.sink",
    "braidlog.spark.uploading",
)
ARENAS_MAX = 2
"""One for the task, and one for the threads that read and write for it."""


def preload() -> None:
    """Import what the workers need, and tell the garbage collector that it will stay."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    keep_freed_memory(ARENAS_MAX)
    for name in PRELOADED:
        import_module(name)
    if threading.active_count() > 1:
        raise RuntimeError(f"threads were started before the first fork: {threading.enumerate()}")
    gc.collect()
    gc.freeze()


def main() -> None:
    # Spark puts its own library first as an archive, which is compiled anew by every process that imports it. Where it
    # is installed, the same modules are at hand compiled.
    installed = [entry for entry in sys.path if not entry.endswith("pyspark.zip")]
    if PathFinder.find_spec("pyspark", installed) is not None:
        sys.path[:] = installed
    preload()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
