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

WORKER_OF_TASKS = "pyspark.worker"
FOR_ALL = ("pyarrow", "braidlog.spark.datasource", "braidlog.spark.source", "braidlog.spark.sink")
FOR_TASKS = (
    "pandas",  # Spark's workers import it, used or not
    "pyarrow.compute",
    "braidlog.spark.reading",
    "braidlog.spark.uploading",
)


def preload(worker: str) -> None:
    """Import what the workers need, and tell the garbage collector that it will stay."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    # Spark starts one daemon for each kind of worker. Those that plan for the driver need little, and need it soon.
    for name in (worker, *FOR_ALL, *(FOR_TASKS if worker == WORKER_OF_TASKS else ())):
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
    preload(next((argument for argument in sys.argv[1:] if argument.startswith("pyspark")), WORKER_OF_TASKS))
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
