"""The driver's side of expiry: writes the heartbeats of its application.

It does so for as long as the application runs.
"""

import logging
import threading
from datetime import datetime
from typing import TYPE_CHECKING

from braidlog.runtime.errors import BraidError
from braidlog.spark.errors import readable_errors
from braidlog.spark.shuffle.expiry.expire import BEATS_PER_RETENTION, Heartbeat, write_heartbeat
from braidlog.spark.shuffle.tasks.python_worker import python_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("braidlog")


class HeartbeatThread:
    """Writes heartbeats from the first shuffle on.

    It ends with `stop` or with the process.
    """

    def __init__(self, store_url: str, job: str, retention_s: float) -> None:
        self._store_url = store_url
        self._job = job
        self._interval_s = retention_s / BEATS_PER_RETENTION
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._keep_from_ms = 0
        self._only_streams = True
        self._session: SparkSession | None = None

    def use(self, session: "SparkSession", *, streaming: bool) -> None:
        """Note that a shuffle was added to a plan, and write the first heartbeat."""
        with self._lock:
            self._session = session
            # What batch queries wrote may be read at any time, because Spark keeps the results of their stages.
            self._only_streams = self._only_streams and streaming
            if self._thread is None:
                with readable_errors("shuffle"):
                    self._keep_from_ms = python_worker(self._store_url).clock.wall_ms()
                    self._beat()
                self._thread = threading.Thread(target=self._run, name="braidlog-shuffle-heartbeat", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self._beat()
            except BraidError as error:
                # The next one may succeed. The retention is several times the interval.
                _log.warning("the heartbeat of a shuffle could not be written: %s", error)

    def _beat(self) -> None:
        worker = python_worker(self._store_url)
        if self._only_streams and self._session is not None:
            self._keep_from_ms = max(self._keep_from_ms, _oldest_trigger_ms(self._session))
        heartbeat = Heartbeat(worker.clock.wall_ms(), self._keep_from_ms)
        worker.loop.run(write_heartbeat(worker.store, self._job, heartbeat))

    def stop(self) -> None:
        self._stopped.set()


def _oldest_trigger_ms(session: "SparkSession") -> int:
    """Return when the last finished micro-batch of the slowest query began.

    Older batches are not needed. Zero if a query has not finished any.
    """
    try:
        last = [query.lastProgress for query in session.streams.active]
        starts = [_milliseconds(each["timestamp"]) if each is not None else 0 for each in last]
    except Exception as error:  # noqa: BLE001 - Spark may raise anything in a session that ends, and keeping more is safe
        _log.warning("the progress of streams could not be read: %s", error)
        return 0
    return min(starts, default=0)


def _milliseconds(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp() * 1000)
