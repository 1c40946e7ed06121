"""A simulated process, which can be killed, paused and resumed as a whole.

Tasks and callbacks carry their process in their context, so the event loop knows which process each belongs to. A
killed process never runs again: a restart is a new process.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

CURRENT: ContextVar["Process | None"] = ContextVar("braidlog_sim_process", default=None)
"""None stands for the world itself: clients, faults, the network."""


class Process:
    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.is_alive = True
        self.is_paused = False
        self.skew_ms = 0
        self.parked: list[asyncio.Handle] = []
        """Callbacks that were due while the process was paused, in order."""
        self.on_kill: list[Callable[[], None]] = []
        """Called when the process dies, as the operating system would: they close sockets and files."""
        self._context = copy_context()
        self._context.run(CURRENT.set, self)

    @property
    def context(self) -> Context:
        """Make a context of this process for a new task or callback."""
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
