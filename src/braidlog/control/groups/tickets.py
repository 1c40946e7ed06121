"""Requests of group members that wait for an answer, each known by a ticket."""

import asyncio
from collections.abc import Iterator
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Tickets(Generic[Answer]):
    """The waiting requests of one kind. `numbers` gives each its ticket."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    def open(self) -> tuple[int, asyncio.Future[Answer]]:
        """Return a new ticket, and the future that its answer resolves."""
        ticket = next(self._numbers)
        future = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        return ticket, future

    def answer(self, ticket: int, answer: Answer) -> None:
        """Answer a ticket, unless it was abandoned."""
        future = self._waiting.pop(ticket, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def abandon(self, ticket: int) -> bool:
        """Forget a ticket. Returns whether it was still unanswered."""
        return self._waiting.pop(ticket, None) is not None
