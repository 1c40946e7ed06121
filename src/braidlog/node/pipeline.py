"""`braid pipeline`: a worker that merges and compacts.

`braid up` starts one, too.
"""

import asyncio
import importlib
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from braidlog.control.interface import COMPACT, MERGE, ControlPlane
from braidlog.control.remote import connect_control
from braidlog.control.service import ControlService
from braidlog.jobs.parts import Part
from braidlog.jobs.rounds import Engine, LocalEngine, RoundExecutor, Stage
from braidlog.jobs.worker import RoundLimits, Worker
from braidlog.node.assembly import Endpoints, Surroundings, open_agent_store
from braidlog.objects.store import Store
from braidlog.runtime.backoff import Backoff
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, InvalidSetting
from braidlog.runtime.quantities import Address
from braidlog.runtime.settings import AgentSettings

if TYPE_CHECKING:
    from braidlog.spark.engine import SparkEngine

TASKS_AT_ONCE = 2
"""Tasks that the worker of `braid up` runs in its process at the same time: one reads while the other writes."""
ROUND_JOBS_MAX = 1_000
ROUND_BYTES_MAX = 8 * 1024**3
ROUNDS_AT_ONCE = 2
"""While a round waits for its last task, the next one uses the other cores."""
SPARK_RETRY_S = 300.0
"""After a failed start, how long jobs run in the process before Spark is tried again."""
CHECK_S = 1.0
STOP_TIMEOUT_S = 20.0
RESTART = Backoff(first_s=1.0, max_s=60.0, share_min=0.5)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """How a worker runs, besides its settings."""

    tasks_at_once: int = 4
    """In this process; on Spark, its cores decide."""
    spark_config: Mapping[str, str] = field(default_factory=dict)
    has_page: bool = False
    """Whether Spark serves its page."""
    ends_with_stdin: bool = False
    watch: "Callable[[Pipeline], Coroutine[Any, Any, None]] | None" = None
    """Shows somebody how the work goes on."""


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    jobs: int
    bytes_done: int
    bytes_total: int
    """The bytes of all jobs since the start."""
    stage: str
    page: str
    """The address of Spark's page, if there is one now."""


class PagedEngine(Engine, Protocol):
    @property
    def page(self) -> str: ...


class Pipeline:
    """A worker and what it runs on."""

    def __init__(self, worker: Worker, spark: PagedEngine | None) -> None:
        self._worker = worker
        self._spark = spark

    def status(self) -> PipelineStatus:
        open_jobs, done = self._worker.open_jobs, self._worker.statistics().bytes_done
        return PipelineStatus(
            len(open_jobs),
            done + sum(each.progress.bytes_done for each in open_jobs),
            done + sum(each.size_bytes for each in open_jobs),
            next((each.progress.stage for each in open_jobs if each.progress.stage), ""),
            self._spark.page if self._spark is not None else "",
        )


def can_compact() -> bool:
    """Whether numba and pyarrow, which compaction needs, are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("numba", "pyarrow"))


def has_spark() -> bool:
    return importlib.util.find_spec("pyspark") is not None


class ChosenEngine:
    """Runs small rounds in this process, and large ones on Spark.

    A JVM takes seconds to start and half a gigabyte, and a round of some megabytes is done in less than a second
    without one. If Spark cannot start, everything runs in this process.
    """

    def __init__(self, local: Engine, spark: Engine, clock: Clock, *, spark_bytes_min: int) -> None:
        self._local = local
        self._spark = spark
        self._clock = clock
        self._spark_bytes_min = spark_bytes_min
        self._retry_s = 0.0

    async def start(self, parts: Sequence[Part]) -> Stage:
        size_bytes = sum(part.size_bytes for part in parts)
        if size_bytes < self._spark_bytes_min:
            why = f"it has less than {self._spark_bytes_min} bytes"
        elif self._clock.monotonic_s() < self._retry_s:
            why = "Spark could not be started lately"
        else:
            try:
                return await self._spark.start(parts)
            except BraidError as error:
                self._retry_s = self._clock.monotonic_s() + SPARK_RETRY_S
                why = f"Spark could not be started: {error}"
                _log.warning("Spark could not be started", error=str(error), help=error.help, again_s=SPARK_RETRY_S)
        _log.info("a round runs in this process", why=why, tasks=len(parts), bytes=size_bytes)
        return await self._local.start(parts)


@asynccontextmanager
async def run_pipeline(
    settings: AgentSettings, plan: PipelinePlan, surroundings: Surroundings | None = None
) -> AsyncIterator[Endpoints]:
    """Run a worker whose control plane is another process."""
    if settings.store_url.startswith("memory:"):
        raise InvalidSetting("a store in the memory of another process cannot be reached", help="Use file:// or s3://.")
    if settings.pipeline_engine == "spark" and not has_spark():
        raise InvalidSetting("Spark is not installed", help="pip install 'braidlog[spark]', or use --engine local.")
    if settings.pipeline_master.startswith("sc://"):
        raise InvalidSetting(
            "Spark Connect does not tell a worker which tasks have ended",
            help="Use local[*], spark://… or k8s://… as the master.",
        )
    around = surroundings or Surroundings.of_this_machine()
    async with AsyncExitStack() as stack:
        store = await open_agent_store(stack, settings, around)
        control = connect_control(str(settings.control), clock=around.clock, entropy=around.entropy.fork("control"))
        stack.push_async_callback(control.close)
        entropy = around.entropy.fork("jobs")
        local = LocalEngine(store, around.clock, entropy, parts_at_once=plan.tasks_at_once)
        spark = _spark_engine(stack, settings, plan, around)
        executor = RoundExecutor(_engine(settings, local, spark, around), store, entropy.fork("rounds"))
        worker = _worker(control, executor, around.clock, around.entropy)
        running = asyncio.create_task(work(worker))
        stack.push_async_callback(_cancel, running)
        if plan.watch is not None:
            stack.push_async_callback(_cancel, asyncio.create_task(plan.watch(Pipeline(worker, spark))))
        if plan.ends_with_stdin:
            _stop_with_stdin()
        yield PipelineEndpoints(control=settings.control, running=running)


@dataclass(frozen=True, slots=True)
class PipelineEndpoints(Endpoints):
    running: "asyncio.Task[None] | None" = None

    async def wait_lost(self) -> str:
        assert self.running is not None
        await asyncio.wait({self.running})
        return f"the worker has ended: {self.running.exception() if not self.running.cancelled() else 'cancelled'}"


def _stop_with_stdin() -> None:
    """Stop, as if by a signal, when the parent closes our standard input.

    That also happens when the parent process is gone.
    """
    loop = asyncio.get_running_loop()

    def ended() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(0, ended)


def _engine(settings: AgentSettings, local: Engine, spark: Engine | None, around: Surroundings) -> Engine:
    if spark is None:
        why = "pipeline_engine says so" if settings.pipeline_engine == "local" else "Spark is not installed"
        _log.info("all jobs run in this process", why=why)
        return local
    if settings.pipeline_engine == "spark":
        return spark
    return ChosenEngine(local, spark, around.clock, spark_bytes_min=settings.pipeline_spark_bytes)


def _spark_engine(
    stack: AsyncExitStack, settings: AgentSettings, plan: PipelinePlan, around: Surroundings
) -> "SparkEngine | None":
    if settings.pipeline_engine == "local" or not has_spark():
        return None
    from braidlog.spark.engine import SparkEngine
    from braidlog.spark.session import create_session, stop_session, with_task_retries

    config = {"spark.ui.enabled": str(plan.has_page).lower(), **plan.spark_config}
    spark = SparkEngine(
        lambda: create_session(
            with_task_retries(settings.pipeline_master),
            app_name="braidlog pipeline",
            config=config,
            quick=True,
            progress=False,
        ),
        settings.store_url,
        around.clock,
        store_latency=settings.store_latency,
        stop=stop_session,
    )
    stack.push_async_callback(spark.close)
    return spark


def _worker(control: ControlPlane, executor: RoundExecutor, clock: Clock, entropy: Entropy) -> Worker:
    kinds = [MERGE]
    if can_compact():
        kinds.append(COMPACT)
    else:
        _log.warning("this worker cannot compact", help="pip install 'braidlog[spark]'")
    name = f"{socket.gethostname()}/{os.getpid()}"
    limits = RoundLimits(ROUND_JOBS_MAX, ROUND_BYTES_MAX, ROUNDS_AT_ONCE)
    return Worker(control, executor, clock, entropy.fork("worker"), name=name, kinds=kinds, limits=limits)


def load_compaction() -> None:
    if can_compact():
        importlib.import_module("braidlog.jobs.compacting")


async def work(worker: Worker, *, load: Callable[[], None] = load_compaction) -> None:
    """Take jobs for ever, but none before the compiled loops are loaded.

    If the inner loops of compaction were never compiled, loading them takes half a minute on a fast processor. On the
    event loop that would hold up heartbeats, and the job would go to the next worker.
    """
    await asyncio.to_thread(load)
    await worker.run()


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class EmbeddedPipeline:
    """The worker of `braid up`, in a process of its own.

    It starts when the first job is due.

    If the store is in this process's memory, the worker runs in this process, too.
    """

    def __init__(
        self, service: ControlService, control: Address, settings: AgentSettings, store: Store, around: Surroundings
    ) -> None:
        self._service = service
        self._control = control
        self._settings = settings
        self._store = store
        self._around = around
        self._process: asyncio.subprocess.Process | None = None
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        await _cancel(self._task)
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _run(self) -> None:
        clock = self._around.clock
        while not self._service.parts.jobs.has_open:
            await clock.sleep(CHECK_S)
        if self._settings.store_url.startswith("memory:"):
            entropy = self._around.entropy.fork("jobs")
            engine = LocalEngine(self._store, clock, entropy)
            executor = RoundExecutor(engine, self._store, entropy.fork("rounds"))
            await work(_worker(self._service, executor, clock, self._around.entropy))
            return
        restarts = 0
        while True:
            self._process = await self._start()
            _log.info("pipeline started", pid=self._process.pid)
            code = await self._process.wait()
            _log.warning("pipeline ended, will be started again", code=code, within_s=RESTART.bound_s(restarts))
            await clock.sleep(RESTART.pause_s(restarts, self._around.entropy))
            restarts += 1

    async def _start(self) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "braidlog", "pipeline", "--until-stdin-ends"]
        command += ["--tasks-at-once", str(TASKS_AT_ONCE)]
        # Not on the command line, which everybody can read: a store's URL may have a password in it.
        environment = {
            **os.environ,
            "BRAIDLOG_CONTROL": str(self._control),
            "BRAIDLOG_STORE_URL": self._settings.store_url,
            "BRAIDLOG_STORE_LATENCY": self._settings.store_latency,
            "BRAIDLOG_PIPELINE_ENGINE": self._settings.pipeline_engine,
            "BRAIDLOG_PIPELINE_MASTER": self._settings.pipeline_master,
            "BRAIDLOG_PIPELINE_SPARK_BYTES": str(self._settings.pipeline_spark_bytes),
            "BRAIDLOG_LOG_LEVEL": self._settings.log_level,
            "BRAIDLOG_LOG_FORMAT": self._settings.log_format,
        }
        # In its own process group: Ctrl-C is for this process, which then stops the worker.
        return await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=sys.stderr, env=environment, start_new_session=True
        )
