"""Runs rounds of jobs on Spark: one stage for a round, one task for each part.

A task reads the store, does the work and writes to the store. Only the plan of a part and the names of its objects pass
through Spark, never a record. So a part costs the same on `local[*]` as on a cluster, and as many run side by side as
there are cores.

Results come back through an accumulator, which Spark updates when a task ends, exactly once, whatever was retried. So a
job is reported while the rest of its stage still runs, and tasks need no connection to the control plane. A task never
raises: Spark would try it again, and in the end fail the whole stage. It answers with its error instead. Spark runs a
task again only if its executor is lost.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam

from braidlog.control.interface import Message
from braidlog.jobs.executor import run_part
from braidlog.jobs.parts import Part, PartResult
from braidlog.jobs.rounds import Stage
from braidlog.objects.latency import SlowStore, latency_profile
from braidlog.objects.open import open_store
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock, SystemClock
from braidlog.runtime.entropy import SystemEntropy
from braidlog.runtime.errors import BraidError, Remedy
from braidlog.spark.event_loop import PerProcess, event_loop_thread

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

SPARK = "spark"
IDLE_S = 60.0
"""How long a session outlives its last stage."""
STAGES_AT_ONCE_MAX = 8
_MIB = 1024 * 1024

_log = structlog.get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode

Report = tuple[int, bytes]
"""The number of a stage of this driver, and an encoded `TaskReport`."""


class TaskFailed(BraidError):
    """A task could not do its part."""

    remedy = Remedy.RETRY


class SparkUnavailable(BraidError):
    """There is no Spark session, and none could be started."""

    remedy = Remedy.RETRY


class TaskOrder(Message, frozen=True):
    """The input of a task."""

    store_url: str
    store_latency: str
    place: int
    part: Part


class TaskReport(Message, frozen=True):
    """The answer of a task."""

    place: int
    stage_id: int
    """Spark's number of the stage."""
    result: PartResult | None = None
    error: str = ""


# ── in the executors ──────────────────────────────────────────────────────────────────────────────────────────────


def _open(place: tuple[str, str]) -> Store:
    url, latency = place
    clock, entropy = SystemClock(), SystemEntropy()

    def slow(inner: Store) -> Store:
        return SlowStore(inner, latency_profile(latency), clock=clock, entropy=entropy.fork("store latency"))

    wrappers = [slow] if latency != "none" else []
    return open_store(url, clock=clock, entropy=entropy.fork("store"), wrap=wrappers)


_stores: PerProcess[tuple[str, str], Store] = PerProcess(_open)


def run_order(encoded: bytes, stage_id: int) -> bytes:
    """Do one part in a Python worker."""
    order = msgspec.msgpack.decode(encoded, type=TaskOrder)
    store = _stores.get((order.store_url, order.store_latency))
    try:
        work = run_part(order.part, store, SystemClock(), SystemEntropy())
        return _encode(TaskReport(order.place, stage_id, event_loop_thread().run(work)))
    except Exception as error:  # noqa: BLE001 - the job's own error, not the stage's
        return _encode(TaskReport(order.place, stage_id, None, f"{type(error).__name__}: {error}"))


def _run_orders(orders: Iterator[bytes], number: int, reports: "Accumulator[list[Report]]") -> None:
    context = TaskContext.get()
    stage_id = context.stageId() if context is not None else -1
    for encoded in orders:
        reports.add([(number, run_order(bytes(encoded), stage_id))])


class Reports(AccumulatorParam["list[Report]"]):
    """Gathers reports in a task; in the driver, passes them on at once."""

    def __init__(self, deliver: "Callable[[int, bytes], None] | None" = None) -> None:
        self._deliver = deliver

    def __reduce__(self) -> Any:
        return Reports, ()

    def zero(self, value: list[Report]) -> list[Report]:
        return []

    def addInPlace(self, value1: list[Report], value2: list[Report]) -> list[Report]:  # noqa: N802 - Spark's name
        if self._deliver is None:
            return value1 + value2
        for number, encoded in value2:
            self._deliver(number, encoded)
        return value1


# ── in the driver ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class SparkStatistics:
    stages: int
    tasks: int
    """Tasks that have reported."""
    bytes: int
    """Bytes of the extents that they have read."""


@dataclass(slots=True, eq=False)
class _Running:
    parts: Sequence[Part]
    stage: Stage
    group: str


class SparkEngine:
    """Submits stages, each from a thread of its own.

    The session starts with the first stage, and stops when there was none for a while.
    """

    def __init__(
        self,
        session: "Callable[[], SparkSession]",
        store_url: str,
        clock: Clock,
        *,
        store_latency: str = "none",
        stop: "Callable[[SparkSession], None] | None" = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._make_session = session
        self._store_url = store_url
        self._store_latency = store_latency
        self._clock = clock
        self._stop_session = stop
        self._idle_s = idle_s
        self._threads = ThreadPoolExecutor(STAGES_AT_ONCE_MAX, thread_name_prefix="spark-stage")
        self._changing = asyncio.Lock()
        self._session: SparkSession | None = None
        self._reports: Accumulator[list[Report]] | None = None
        self._numbers = count(1)
        self._running: dict[int, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Task[None] | None = None
        self._done = SparkStatistics(0, 0, 0)
        self.page = ""
        """The address of Spark's own page, while there is a session that has one."""

    def statistics(self) -> SparkStatistics:
        return self._done

    @property
    def is_started(self) -> bool:
        return self._session is not None

    async def start(self, parts: Sequence[Part]) -> Stage:
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        stage = Stage(SPARK, [loop.create_future() for _ in parts])
        self._running[number] = running = _Running(parts, stage, f"braidlog-{number}")
        try:
            session = await self._started()
        except BaseException:
            del self._running[number]
            raise
        task = loop.create_task(self._run(session, number, running))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stage

    async def _run(self, session: "SparkSession", number: int, running: _Running) -> None:
        orders = [
            _encode(TaskOrder(self._store_url, self._store_latency, place, part))
            for place, part in enumerate(running.parts)
        ]
        size_bytes = sum(part.size_bytes for part in running.parts)
        title = f"braidlog round: {len(orders)} tasks, {size_bytes // _MIB} MiB"
        loop = asyncio.get_running_loop()
        results = running.stage.results
        given_up: asyncio.Future[Any] = (
            asyncio.ensure_future(asyncio.wait(results)) if results else loop.create_future()
        )
        failure: Exception = TaskFailed("the task has ended without a report")
        assert self._reports is not None
        try:
            submit = partial(_submit, session, orders, number, running.group, title, self._reports)
            submitted = loop.run_in_executor(self._threads, submit)
            waiting: set[asyncio.Future[Any]] = {submitted, given_up}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not submitted.done() and any(result.cancelled() for result in results):
                # The rest is given up, because its leases are lost, and its work would be useless.
                await loop.run_in_executor(None, session.sparkContext.cancelJobGroup, running.group)
            await submitted
        except Exception as error:  # noqa: BLE001 - py4j and Spark have many kinds
            failure = TaskFailed(f"the stage failed: {str(error).splitlines()[0] if str(error) else error!r}")
            _log.error("a stage failed", tasks=len(orders), error=str(error)[:2000])
            await self._forget_if_dead(session)
        finally:
            given_up.cancel()
            del self._running[number]
            for result in results:
                if not result.done():
                    result.set_exception(failure)
                    result.exception()  # whoever waited may be gone
            self._wait_idle()

    def _deliver(self, number: int, encoded: bytes) -> None:
        """Take a task's report."""
        running = self._running.get(number)
        if running is None:
            return
        report = msgspec.msgpack.decode(encoded, type=TaskReport)
        part, result = running.parts[report.place], running.stage.results[report.place]
        running.stage.label = f"{SPARK} {report.stage_id}"
        if report.result is not None:
            before = self._done
            self._done = SparkStatistics(before.stages, before.tasks + 1, before.bytes + part.size_bytes)
        if result.done():
            return
        if report.result is not None:
            result.set_result(report.result)
        else:
            result.set_exception(TaskFailed(report.error))

    async def _started(self) -> "SparkSession":
        async with self._changing:
            if self._session is None:
                loop = asyncio.get_running_loop()
                started_s = self._clock.monotonic_s()
                try:
                    self._session = session = await loop.run_in_executor(None, self._make_session)
                except BraidError:
                    raise
                except Exception as error:
                    raise SparkUnavailable(f"no Spark session could be started: {error}") from error
                context = session.sparkContext

                def deliver(number: int, encoded: bytes) -> None:
                    loop.call_soon_threadsafe(self._deliver, number, encoded)

                self._reports = context.accumulator([], Reports(deliver))
                self.page = context.uiWebUrl or ""
                seconds = round(self._clock.monotonic_s() - started_s, 1)
                _log.info("Spark started", master=context.master, page=self.page or None, seconds=seconds)
            before = self._done
            self._done = SparkStatistics(before.stages + 1, before.tasks, before.bytes)
            return self._session

    async def _forget_if_dead(self, session: "SparkSession") -> None:
        """Forget a session whose JVM has ended, so that the next stage starts another."""

        def is_dead() -> bool:
            try:
                return bool(session.sparkContext._jsc.sc().isStopped())  # type: ignore[union-attr,unused-ignore]
            except Exception:  # noqa: BLE001 - nobody answers
                return True

        if await asyncio.get_running_loop().run_in_executor(None, is_dead):
            async with self._changing:
                if self._session is session:
                    await self._stop()

    def _wait_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._running and self._session is not None:
            self._idle = asyncio.get_running_loop().create_task(self._stop_when_idle())

    async def _stop_when_idle(self) -> None:
        await self._clock.sleep(self._idle_s)
        async with self._changing:
            if not self._running and self._session is not None:
                _log.info("Spark stops, because there was nothing to do", idle_s=self._idle_s)
                await self._stop()

    async def _stop(self) -> None:
        session, self._session, self._reports, self.page = self._session, None, None, ""
        if session is not None and self._stop_session is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._stop_session, session)

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        async with self._changing:
            await self._stop()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown(wait=False, cancel_futures=True)


def _submit(
    session: "SparkSession",
    orders: Sequence[bytes],
    number: int,
    group: str,
    title: str,
    reports: "Accumulator[list[Report]]",
) -> None:
    """Run one stage to its end.

    Each order is a slice, and Spark starts tasks in the order of their slices.
    """
    threading.current_thread().name = group
    context = session.sparkContext
    context.setJobGroup(group, title, interruptOnCancel=True)
    slices = context.parallelize([bytearray(order) for order in orders], len(orders))
    slices.foreachPartition(partial(_run_orders, number=number, reports=reports))
