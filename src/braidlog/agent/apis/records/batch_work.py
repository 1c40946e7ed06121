"""Work on batches, on the event loop or in threads.

It runs in a thread if it would hold up everyone else.

The decompressed size of a batch is not known before, and a few kilobytes can become hundreds of megabytes. So a batch
is tried with little room first, and gets more room only in the next lane:

    event loop     `LIGHT_BYTES_MAX`, or records that are checked without being decompressed
    two threads    `ORDINARY_BYTES_MAX` each
    one thread     the setting `batch_expanded_bytes_max`, one batch at a time

The threads and the room of each lane bound the memory in use, and no batch waits for one in a wider lane.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

import structlog

from braidlog.records.batch import CODEC_MASK, BatchHeader
from braidlog.records.errors import InvalidBatch, RecordsTooLarge
from braidlog.records.preparation import LogRules, prepare_batch
from braidlog.records.record_checks import COMPILED_FROM, Times, is_compiled, is_plain_record, load_compiled
from braidlog.runtime.tasks import TaskGroup
from braidlog.runtime.turns import Turns

log = structlog.get_logger(__name__)

LIGHT_BYTES_MAX = 128 * 1024
"""The decompressed size that is handled on the event loop: well under a millisecond of work."""
LIGHT_PACKED_BYTES_MAX = 64 * 1024
LIGHT_RECORDS_MAX = 5_000
"""Records that are checked in plain Python on the event loop: under 10 ms. Batches of a request share a turn's time."""
LIGHT_COMPILED_BYTES_MAX = 4 * 1024 * 1024
ORDINARY_BYTES_MAX = 16 * 1024 * 1024
ORDINARY_THREADS = 2
COMPILED_AFTER_RECORDS = 50_000
"""After this many records were checked in plain Python, it is worth loading the compiled check."""

T = TypeVar("T")
A = TypeVarTuple("A")
Prepared = tuple[memoryview, BatchHeader]


class BatchWork:
    """Prepares batches for their logs, and does other work on large batches."""

    def __init__(self, turns: Turns, *, expanded_bytes_max: int) -> None:
        self._turns = turns
        self._expanded_bytes_max = expanded_bytes_max
        self._ordinary = ThreadPoolExecutor(ORDINARY_THREADS, thread_name_prefix="braidlog-batch")
        self._wide = ThreadPoolExecutor(1, thread_name_prefix="braidlog-large-batch")
        self.tasks = TaskGroup("batches")
        """The tasks of requests that wait for their batches."""
        self._plain_records = 0
        self._loading: asyncio.Future[bool] | None = None

    def prepare_light(self, batch: memoryview, header: BatchHeader, rules: LogRules, times: Times) -> Prepared | None:
        """Prepare a batch on the event loop.

        Returns None if that would take too long: call `prepare` then.
        """
        if rules.codec is None and is_plain_record(batch, header, times, needs_key=rules.needs_keys):
            return batch, header
        if header.record_count >= COMPILED_FROM and not is_compiled():
            self._count_plain(header.record_count)
        if not self._is_light(header, rules):
            return None
        if not self._turns.has_time() and (header.attributes & CODEC_MASK or not is_compiled()):
            return None
        try:
            limit = min(LIGHT_BYTES_MAX, self._expanded_bytes_max) if header.attributes & CODEC_MASK else len(batch)
            return prepare_batch(batch, header, rules, times, expanded_bytes_max=limit)
        except RecordsTooLarge:
            return None

    @staticmethod
    def _is_light(header: BatchHeader, rules: LogRules) -> bool:
        if not is_compiled() and header.record_count > LIGHT_RECORDS_MAX:
            return False
        if header.attributes & CODEC_MASK or rules.codec is not None:
            return header.total_bytes <= LIGHT_PACKED_BYTES_MAX
        return not is_compiled() or header.total_bytes <= LIGHT_COMPILED_BYTES_MAX

    async def prepare(self, batch: memoryview, header: BatchHeader, rules: LogRules, times: Times) -> Prepared:
        """Prepare a batch in a thread. Raises `InvalidBatch`."""
        limit = min(ORDINARY_BYTES_MAX, self._expanded_bytes_max) if header.attributes & CODEC_MASK else len(batch)
        try:
            return await self._in(self._ordinary, _prepare, batch, header, rules, times, limit)
        except RecordsTooLarge:
            pass
        try:
            return await self._in(self._wide, _prepare, batch, header, rules, times, self._expanded_bytes_max)
        except RecordsTooLarge as error:
            message = (
                f"{error.message}, the limit set by batch_expanded_bytes_max: send smaller batches, or raise the limit"
            )
            raise InvalidBatch(error.error_code, message) from None

    async def call(self, work: Callable[[*A], T], *arguments: *A) -> T:
        """Do work that may decompress a batch of any size."""
        return await self._in(self._wide, work, *arguments)

    async def _in(self, lane: ThreadPoolExecutor, work: Callable[[*A], T], *arguments: *A) -> T:
        return await asyncio.get_running_loop().run_in_executor(lane, work, *arguments)

    def _count_plain(self, record_count: int) -> None:
        self._plain_records += record_count
        if self._plain_records >= COMPILED_AFTER_RECORDS and self._loading is None:
            self._loading = asyncio.get_running_loop().run_in_executor(self._ordinary, load_compiled)
            self._loading.add_done_callback(_tell_loaded)

    async def close(self) -> None:
        """Stop.

        Work in threads is not waited for, because nobody needs its results any more.
        """
        await self.tasks.cancel_all()
        self._ordinary.shutdown(wait=False, cancel_futures=True)
        self._wide.shutdown(wait=False, cancel_futures=True)


def _prepare(batch: memoryview, header: BatchHeader, rules: LogRules, times: Times, bytes_max: int) -> Prepared:
    return prepare_batch(batch, header, rules, times, expanded_bytes_max=bytes_max)


def _tell_loaded(loading: asyncio.Future[bool]) -> None:
    if loading.cancelled():
        return
    if loading.exception() is not None:
        log.warning("the compiled check of records could not be loaded", error=str(loading.exception()))
    elif not loading.result():
        log.info("records are checked in plain Python", help="pip install 'braidlog[spark]' makes that cheap")
