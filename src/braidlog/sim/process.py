"""A simulated process: what can be killed, paused and resumed as a whole.

Everything that runs on behalf of a process carries it in its context, so the event loop knows whose turn it is. A
process that was killed never runs again: a restart is a new process.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

CURRENT: ContextVar["Process | None"] = ContextVar("braidlog_sim_process", default=None)
"""None is the world itself: clients' tasks, the fault plan, the network."""


class Process:
    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.is_alive = True
        self.is_paused = False
        self.skew_ms = 0
        self.parked: list[asyncio.Handle] = []
        """What would have run while the process was paused, in order."""
        self.on_kill: list[Callable[[], None]] = []
        """What the operating system does when the process dies: close its sockets and files."""
        self._context = copy_context()
        self._context.run(CURRENT.set, self)

    @property
    def context(self) -> Context:
        """A context of this process for a new task or callback."""
        return self._context.copy()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function as this process."""
        return self.context.run(function, *arguments)

    def kill(self) -> None:
        self.is_alive = False
        self.parked.clear()
        for callback in self.on_kill:
            callback()
        self.on_kill.clear()

    def __repr__(self) -> str:
        return f"<{self.name} on {self.host}>"
