"""Lets Python workers exit without a traceback when Spark disconnects them.

Spark closes the connection to a worker whose rows are no longer needed (a `limit` is reached), and to a worker that was
idle for a minute. pyspark's daemon then fails to write the rest of the worker's buffer, shows a traceback of
`BrokenPipeError` and ends the worker. Ending it is right, because nobody waits for an answer any more. The traceback is
misleading.
"""

import functools
import sys
from typing import Any

DAEMON_MODULE = "pyspark.daemon"


def exit_quietly(daemon: Any) -> None:
    """Make all workers that this daemon module starts from now on exit quietly."""
    run = daemon.worker
    if getattr(run, "exits_quietly", False):
        return

    @functools.wraps(run)
    def worker(*arguments: Any) -> int:
        try:
            return int(run(*arguments))
        except (BrokenPipeError, ConnectionResetError):
            # Errors of a task are sent to Spark, and never arrive here.
            return 1

    worker.exits_quietly = True  # type: ignore[attr-defined]
    daemon.worker = worker


def exit_quietly_here() -> None:
    """Do the same in a worker of the driver, which always uses pyspark's own daemon."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == DAEMON_MODULE and hasattr(main, "worker"):
        exit_quietly(main)
