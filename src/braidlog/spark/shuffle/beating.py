"""The driver's side of expiry: it says that the application is there, for as long as it is."""

import logging
import threading
from datetime import datetime
from typing import TYPE_CHECKING

from braidlog.runtime.errors import BraidError
from braidlog.spark.errors import told_to_people
from braidlog.spark.shuffle.expiry import BEATS_PER_RETENTION, Heartbeat, write_heartbeat
from braidlog.spark.shuffle.worker import worker_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("braidlog")


class Beating:
    """Begins with the first shuffle, and ends with the process or with `stop`."""

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
        """A shuffle was added to a plan."""
        with self._lock:
            self._session = session
            # What batch queries wrote may be read at any time: Spark keeps the outcome of their stages.
            self._only_streams = self._only_streams and streaming
            if self._thread is None:
                with told_to_people("shuffle"):
                    self._keep_from_ms = worker_for(self._store_url).clock.wall_ms()
                    self._beat()
                self._thread = threading.Thread(target=self._run, name="braidlog-shuffle-heartbeat", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self._beat()
            except BraidError as error:
                # The next one may get through. Retention is several times the interval.
                _log.warning("the heartbeat of a shuffle was not written: %s", error)

    def _beat(self) -> None:
        worker = worker_for(self._store_url)
        if self._only_streams and self._session is not None:
            self._keep_from_ms = max(self._keep_from_ms, _oldest_trigger_ms(self._session))
        heartbeat = Heartbeat(worker.clock.wall_ms(), self._keep_from_ms)
        worker.run(write_heartbeat(worker.store, self._job, heartbeat))

    def stop(self) -> None:
        self._stopped.set()


def _oldest_trigger_ms(session: "SparkSession") -> int:
    """When the last finished micro-batch of the slowest query began: what was written before it is not needed any
    more. Zero where a query has not finished any."""
    try:
        last = [query.lastProgress for query in session.streams.active]
        starts = [_milliseconds(each["timestamp"]) if each is not None else 0 for each in last]
    except Exception as error:  # noqa: BLE001 - whatever Spark raises in a session that ends, keeping more is safe
        _log.warning("the progress of streams could not be read: %s", error)
        return 0
    return min(starts, default=0)


def _milliseconds(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp() * 1000)
