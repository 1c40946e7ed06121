"""Converts between bytes and messages.

Quick conversions run on the event loop, long ones on a thread.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
A = TypeVarTuple("A")


class Converter:
    """Has one thread. Two would not be faster, since both would need the interpreter."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="braidlog-messages")

    async def convert(self, is_large: bool, work: Callable[[*A], T], *arguments: *A) -> T:
        if not is_large:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def close(self) -> None:
        self._thread.shutdown(wait=False)
