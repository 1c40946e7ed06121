"""A place in the order: what must be sequenced before what."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Place:
    """Something that is sequenced after what it follows.

    A place is *settled* when its own fate is known, and *released* when that holds for everything before it too. Only a
    release lets the next one be sequenced: what fails early must not let its successors overtake those that are still
    on their way.
    """

    is_settled: bool = field(default=False, init=False)
    is_released: bool = field(default=False, init=False)
    predecessors_open: int = field(default=0, init=False)
    """Earlier places that are not released yet."""
    _successors: list["Place"] = field(default_factory=list, init=False)
    _on_clear: Callable[[], None] | None = field(default=None, init=False)

    def follow(self, earlier: "Place") -> None:
        """Be sequenced after `earlier`, however late that is done."""
        if not earlier.is_released:
            earlier._successors.append(self)
            self.predecessors_open += 1

    def when_clear(self, called: Callable[[], None]) -> None:
        """Call once everything that must be sequenced before this has been, or never will be."""
        if self.predecessors_open:
            self._on_clear = called
        else:
            called()

    async def wait_turn(self) -> None:
        """Return when everything that must be sequenced before this has been, or never will be."""
        if self.predecessors_open:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_clear(lambda: None if turn.done() else turn.set_result(None))
            await turn

    def settle(self) -> None:
        """Nothing more will happen here."""
        self.is_settled = True
        # Not recursive: behind an object that was stuck for long there may be a thousand others.
        released = [self] if not self.predecessors_open else []
        while released:
            place = released.pop()
            place.is_released = True
            for following in place._successors:
                following.predecessors_open -= 1
                if not following.predecessors_open:
                    called, following._on_clear = following._on_clear, None
                    if called is not None:
                        called()
                    if following.is_settled:
                        released.append(following)
            place._successors = []
