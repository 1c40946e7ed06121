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
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from braidlog.control.interface import COMPACT, MERGE, ControlPlane, TakenJob
from braidlog.control.remote import connect_control
from braidlog.control.service import ControlService
from braidlog.jobs.executor import Executor, InProcessExecutor
from braidlog.jobs.output import Completion
from braidlog.jobs.worker import Worker
from braidlog.node.assembly import Endpoints, Surroundings
from braidlog.objects.open import open_store
from braidlog.objects.store import Store
from braidlog.runtime.backoff import Backoff
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.quantities import Address
from braidlog.runtime.settings import AgentSettings

JOBS_AT_ONCE = 2
"""Jobs that the worker of `braid up` runs at the same time: one reads while the other writes."""
SPARK_BYTES_MIN = 256 * 1024 * 1024
CHECK_S = 1.0
STOP_TIMEOUT_S = 20.0
RESTART = Backoff(first_s=1.0, max_s=60.0, share_min=0.5)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """How a worker runs its jobs.

    A JVM takes seconds to start and half a gigabyte, and a job of some megabytes is done in less than a second without
    one. So only jobs of at least `spark_bytes_min` go to Spark, and it is started for the first of them.
    """

    master: str = "local[*]"
    uses_spark: bool = True
    spark_bytes_min: int = SPARK_BYTES_MIN
    jobs_at_once: int = 4
    ends_with_stdin: bool = False


def can_compact() -> bool:
    """Whether numba and pyarrow, which compaction needs, are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("numba", "pyarrow"))


def has_spark() -> bool:
    return importlib.util.find_spec("pyspark") is not None


class ChosenExecutor:
    """Runs small jobs in this process, and large ones on Spark."""

    def __init__(self, small: Executor, large: Executor, *, large_bytes_min: int) -> None:
        self._small = small
        self._large = large
        self._large_bytes_min = large_bytes_min

    async def run(self, job: TakenJob) -> Completion:
        assert job.task is not None
        size_bytes = sum(extent.length for partition in job.task.partitions for extent in partition.extents)
        return await (self._large if size_bytes >= self._large_bytes_min else self._small).run(job)


@asynccontextmanager
async def run_pipeline(
    settings: AgentSettings, plan: PipelinePlan, surroundings: Surroundings | None = None
) -> AsyncIterator[Endpoints]:
    """Run a worker whose control plane is another process."""
    if settings.store_url.startswith("memory:"):
        raise InvalidSetting("a store in the memory of another process cannot be reached", help="Use file:// or s3://.")
    if plan.uses_spark and not has_spark():
        raise InvalidSetting("Spark is not installed", help="pip install 'braidlog[spark]', or run with --no-spark.")
    around = surroundings or Surroundings.of_this_machine()
    async with AsyncExitStack() as stack:
        store = open_store(settings.store_url, clock=around.clock, entropy=around.entropy.fork("store"))
        stack.push_async_callback(store.close)
        control = connect_control(str(settings.control), clock=around.clock, entropy=around.entropy.fork("control"))
        stack.push_async_callback(control.close)
        executor = await _executor(stack, settings, plan, store, around)
        worker = _worker(control, executor, around.clock, around.entropy, plan.jobs_at_once)
        running = asyncio.create_task(work(worker))
        stack.push_async_callback(_cancel, running)
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


async def _executor(
    stack: AsyncExitStack, settings: AgentSettings, plan: PipelinePlan, store: Store, around: Surroundings
) -> Executor:
    in_process = InProcessExecutor(store, around.clock, around.entropy.fork("jobs"))
    if not plan.uses_spark:
        return in_process
    from braidlog.spark.executor import SparkExecutor
    from braidlog.spark.session import create_session

    spark = SparkExecutor(
        lambda: create_session(plan.master, app_name="braidlog pipeline"),
        settings.store_url,
        jobs_at_once=plan.jobs_at_once,
    )
    stack.push_async_callback(spark.close)
    return ChosenExecutor(in_process, spark, large_bytes_min=plan.spark_bytes_min)


def _worker(control: ControlPlane, executor: Executor, clock: Clock, entropy: Entropy, jobs_at_once: int) -> Worker:
    kinds = [MERGE]
    if can_compact():
        kinds.append(COMPACT)
    else:
        _log.warning("this worker cannot compact", help="pip install 'braidlog[spark]'")
    name = f"{socket.gethostname()}/{os.getpid()}"
    return Worker(control, executor, clock, entropy.fork("worker"), name=name, kinds=kinds, jobs_at_once=jobs_at_once)


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
            executor = InProcessExecutor(self._store, clock, self._around.entropy.fork("jobs"))
            await work(_worker(self._service, executor, clock, self._around.entropy, 1))
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
        command += ["--jobs-at-once", str(JOBS_AT_ONCE), *([] if has_spark() else ["--no-spark"])]
        # Not on the command line, which everybody can read: a store's URL may have a password in it.
        environment = {
            **os.environ,
            "BRAIDLOG_CONTROL": str(self._control),
            "BRAIDLOG_STORE_URL": self._settings.store_url,
            "BRAIDLOG_LOG_LEVEL": self._settings.log_level,
            "BRAIDLOG_LOG_FORMAT": self._settings.log_format,
        }
        # In its own process group: Ctrl-C is for this process, which then stops the worker.
        return await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=sys.stderr, env=environment, start_new_session=True
        )
