"""Background tasks with an owner, with which they end.

They are kept alive, and their failures are logged.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

log = structlog.get_logger(__name__)


class TaskGroup:
    """Tasks that outlive the call that spawned them.

    An unexpected error is logged, and does not end the rest.
    """

    def __init__(self, name: str, *, errors_are_awaited: bool = False) -> None:
        """With `errors_are_awaited`, errors are not logged.

        They go to whoever awaits the task.
        """
        self._name = name
        self._errors_are_awaited = errors_are_awaited
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and not self._errors_are_awaited:
            log.error("background task failed", group=self._name, error=repr(error), exc_info=error)

    async def wait_all(self) -> None:
        """Return when no task is left, including those that are spawned meanwhile."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def cancel_all(self) -> None:
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def __len__(self) -> int:
        return len(self._tasks)
