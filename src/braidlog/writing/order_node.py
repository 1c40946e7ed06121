"""A node in the order of sequencing: it knows which others must come first."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from braidlog.runtime.errors import BraidError, Remedy


class OrderLost(BraidError):
    """Something comes before the node that may be sequenced at any time, or never.

    So the node itself is not sequenced.
    """

    remedy = Remedy.RETRY


@dataclass(eq=False, slots=True)
class OrderNode:
    """Something that is sequenced after the nodes that it follows.

    A node is *settled* when its own fate is known, and *released* when that holds for everything before it too. Only a
    release lets the next one be sequenced: if a node fails early, its successors must not overtake those before it that
    are still under way.
    """

    is_settled: bool = field(default=False, init=False)
    is_released: bool = field(default=False, init=False)
    is_lost: bool = field(default=False, init=False)
    """Whether something before it was left behind, and may be sequenced at any time."""
    predecessors_open: int = field(default=0, init=False)
    """Earlier nodes that are not released yet."""
    _successors: list["OrderNode"] = field(default_factory=list, init=False)
    _on_clear: Callable[[], None] | None = field(default=None, init=False)

    def follow(self, earlier: "OrderNode") -> None:
        """Wait for `earlier`, however long that takes."""
        if not earlier.is_released:
            earlier._successors.append(self)
            self.predecessors_open += 1

    def when_clear(self, called: Callable[[], None]) -> None:
        """Call `called` once everything before this node is sequenced, or never will be."""
        if self.predecessors_open:
            self._on_clear = called
        else:
            called()

    async def wait_predecessors(self) -> None:
        """Return when everything before this node is sequenced, or never will be.

        Raises `OrderLost` if something before it was left behind.
        """
        if self.predecessors_open:
            clear: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_clear(lambda: None if clear.done() else clear.set_result(None))
            await clear
        if self.is_lost:
            raise OrderLost("a batch before it waits in a journal", help="Send it again.")

    def settle(self) -> None:
        """Note that this node's own fate is known, and release whatever waited for that."""
        self.is_settled = True
        # Not recursive: a thousand objects may wait behind one that was stuck.
        released = [self] if not self.predecessors_open else []
        while released:
            node = released.pop()
            node.is_released = True
            for following in node._successors:
                following.predecessors_open -= 1
                if not following.predecessors_open:
                    called, following._on_clear = following._on_clear, None
                    if called is not None:
                        called()
                    if following.is_settled:
                        released.append(following)
            node._successors = []

    def leave_behind(self) -> None:
        """Let nothing that follows this node now be sequenced.

        The node itself may be sequenced at any time, or never.
        """
        following = [*self._successors]
        while following:
            node = following.pop()
            if not node.is_lost:
                node.is_lost = True
                following += node._successors
        self.settle()
