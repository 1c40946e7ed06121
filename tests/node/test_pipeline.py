"""A worker is ready for a job before it takes one."""

import asyncio
import threading
from typing import Any, cast

from braidlog.jobs.worker import Worker
from braidlog.node.pipeline import work

WAIT_S = 60.0


class Waiting:
    """A worker that only tells that it was let."""

    def __init__(self) -> None:
        self.takes_jobs = asyncio.Event()

    async def run(self) -> None:
        self.takes_jobs.set()


async def test_loading_compaction_holds_up_the_worker_and_not_the_loop() -> None:
    worker = Waiting()
    is_loading, may_go_on = threading.Event(), threading.Event()

    def load() -> None:
        is_loading.set()
        # Left by itself it would end, so that a loop that is held up fails the test and does not hang it.
        may_go_on.wait(WAIT_S)

    task = asyncio.create_task(work(cast(Worker, cast(Any, worker)), load=load))
    try:
        assert await asyncio.to_thread(is_loading.wait, WAIT_S)
        assert not may_go_on.is_set()
        assert not worker.takes_jobs.is_set()
    finally:
        may_go_on.set()
    async with asyncio.timeout(WAIT_S):
        await task
    assert worker.takes_jobs.is_set()
