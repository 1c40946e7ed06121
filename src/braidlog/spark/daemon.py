"""The process from which Spark's Python workers are forked.

It has already loaded everything that they need. Otherwise each worker would load Arrow, numba and the compiled record
codec itself, which takes seconds, and its garbage collector would scan them again and again. Spark starts this process
as a module (`spark.python.daemon.module`). A process must not have threads when it forks, so libraries that would start
threads are told not to.
"""

import gc
import os
import sys
import threading
from importlib import import_module
from importlib.machinery import PathFinder

from braidlog.runtime.allocator import keep_freed_memory
from braidlog.spark.worker_exit import exit_quietly

PRELOADED = (
    "pandas",  # Spark's workers import it, used or not
    "pyarrow.compute",
    "pyspark.worker",
    "braidlog.spark.datasource",
    "braidlog.spark.source.readers",
    "braidlog.spark.source.slice_reader",
    "braidlog.spark.shuffle.tasks.stages",
    "braidlog.spark.shuffle.aggregate.stages",
    "braidlog.spark.sink.writers",
    "braidlog.spark.sink.uploader",
    "braidlog.spark.engine",
    "braidlog.jobs.compacting",
    "braidlog.jobs.stored_keys",
)
ARENAS_MAX = 2
"""The allocator's arenas: one for the task, and one for the threads that read and write for it."""


def preload() -> None:
    """Import what the workers need, and exclude it from garbage collection."""
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
    # Spark puts its library first on the path as an archive, which every process compiles again. If pyspark is
    # installed, the same modules are there in compiled form.
    installed = [entry for entry in sys.path if not entry.endswith("pyspark.zip")]
    if PathFinder.find_spec("pyspark", installed) is not None:
        sys.path[:] = installed
    preload()
    from pyspark import daemon

    exit_quietly(daemon)
    daemon.manager()


if __name__ == "__main__":
    main()
