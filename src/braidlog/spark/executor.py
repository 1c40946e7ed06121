"""Runs jobs on Spark, with one task for each job.

The task reads the store, does the work and writes to the store. Only the plan of a job and the names of its objects
pass through Spark, never a record. So a job costs the same on `local[*]` as on a cluster, and as many jobs run side by
side as there are cores.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from braidlog.control.interface import JobTask, Message, NewObject, Replacement, TakenJob
from braidlog.jobs.executor import run_task
from braidlog.jobs.output import Completion
from braidlog.objects.open import open_store
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
    from pyspark.sql import SparkSession

TASK_SCHEMA = "task binary"
RESULT_SCHEMA = "result binary"

_encode = msgspec.msgpack.Encoder().encode


class TaskOrder(Message, frozen=True):
    """The input of a Spark task."""

    store_url: str
    write_epoch: int
    task: JobTask


class TaskResult(Message, frozen=True):
    """The answer of a Spark task: a `Completion`."""

    objects: list[NewObject]
    replacements: list[Replacement]
    due_ms: int
    clean_end_offset: int


def run_order(encoded: bytes) -> bytes:
    """Run a job in a Python worker.

    Every attempt chooses new object names, so a second one does no harm.
    """
    order = msgspec.msgpack.decode(encoded, type=TaskOrder)

    async def run() -> Completion:
        clock, entropy = SystemClock(), SystemEntropy()
        store = open_store(order.store_url, clock=clock, entropy=entropy.fork("store"))
        try:
            return await run_task(order.task, store, clock, entropy, write_epoch=order.write_epoch)
        finally:
            await store.close()

    done = asyncio.run(run())
    return _encode(TaskResult(done.objects, done.replacements, done.due_ms, done.clean_end_offset))


def _run_batches(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    for batch in batches:
        results = [run_order(encoded.as_py()) for encoded in batch.column(0)]
        yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], names=["result"])


class SparkExecutor:
    """Submits each job to Spark from a thread of its own.

    The session starts with the first job.
    """

    def __init__(self, session: "Callable[[], SparkSession]", store_url: str, *, jobs_at_once: int) -> None:
        self._make_session = session
        self._store_url = store_url
        self._threads = ThreadPoolExecutor(max(1, jobs_at_once), thread_name_prefix="spark-job")
        self._starting = asyncio.Lock()
        self._session: SparkSession | None = None

    async def run(self, job: TakenJob) -> Completion:
        assert job.task is not None
        session = await self._started()
        order = _encode(TaskOrder(self._store_url, job.write_epoch, job.task))
        tag = f"braidlog-job-{job.job_id}-{job.token.hex()[:8]}"
        loop = asyncio.get_running_loop()
        try:
            encoded = await loop.run_in_executor(self._threads, _submit, session, order, tag)
        except asyncio.CancelledError:
            # The lease is lost, so the rest of the task's work would be useless.
            loop.run_in_executor(None, session.interruptTag, tag)
            raise
        result = msgspec.msgpack.decode(encoded, type=TaskResult)
        return Completion(result.objects, result.replacements, result.due_ms, result.clean_end_offset)

    async def _started(self) -> "SparkSession":
        async with self._starting:
            if self._session is None:
                self._session = await asyncio.get_running_loop().run_in_executor(None, self._make_session)
            return self._session

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await asyncio.get_running_loop().run_in_executor(None, session.stop)
        self._threads.shutdown(wait=False, cancel_futures=True)


def _submit(session: "SparkSession", order: bytes, tag: str) -> bytes:
    session.addTag(tag)
    try:
        frame = session.createDataFrame([(bytearray(order),)], TASK_SCHEMA).coalesce(1)
        row: Any = frame.mapInArrow(_run_batches, RESULT_SCHEMA).collect()[0]
        return bytes(row[0])
    finally:
        session.removeTag(tag)
