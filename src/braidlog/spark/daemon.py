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

WORKER_OF_TASKS = "pyspark.worker"
PRELOADED = (
    "pandas",  # Spark's workers import it, used or not
    "pyarrow.compute",
    "braidlog.spark.datasource",
    "braidlog.spark.source",
    "braidlog.spark.reading",
    "braidlog.spark.sink",
    "braidlog.spark.uploading",
)


def preload() -> None:
    """Import what every task needs, and tell the garbage collector that it will stay."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    for name in PRELOADED:
        import_module(name)
    if threading.active_count() > 1:
        raise RuntimeError(f"threads were started before the first fork: {threading.enumerate()}")
    gc.collect()
    gc.freeze()


def main() -> None:
    # Spark starts one for each kind of worker. Those that plan for the driver need little, and need it soon.
    if WORKER_OF_TASKS in sys.argv:
        preload()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
