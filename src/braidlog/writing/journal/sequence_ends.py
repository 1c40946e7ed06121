"""Tells the control plane which journal sequences of this agent are complete."""

import structlog

from braidlog.control.interface import ControlPlane, EndSequence
from braidlog.runtime.errors import BraidError
from braidlog.runtime.tasks import TaskGroup

log = structlog.get_logger(__name__)

ENDS_UNTOLD_MAX = 10_000


class SequenceEnds:
    """Saves the control plane a seal.

    If it does not hear of a sequence's end in time, it has the sequence sealed.
    """

    def __init__(self, control: ControlPlane, incarnation: str, *, call_timeout_s: float) -> None:
        self._control = control
        self._incarnation = incarnation
        self._call_timeout_s = call_timeout_s
        self._calls = TaskGroup("ends of sequences")
        self._untold: dict[int, int] = {}
        """How many slots each ended sequence has, by number, while the control plane does not know yet."""

    def ended(self, number: int, slot_count: int) -> None:
        """Tell of a sequence that is complete, with so many files."""
        self._untold[number] = slot_count
        if len(self._untold) > ENDS_UNTOLD_MAX:
            del self._untold[min(self._untold)]
        self.tell()

    def tell(self) -> None:
        """Tell of all ends that the control plane does not know yet."""
        self._calls.spawn(self._tell())

    async def _tell(self) -> None:
        # In their order: they are replayed in the order in which they became known.
        for number, slot_count in sorted(self._untold.items()):
            if self._untold.pop(number, None) is None:
                continue  # another task has seen to it meanwhile
            try:
                request = EndSequence(self._incarnation, number, slot_count)
                await self._control.end_sequence(request, timeout_s=self._call_timeout_s)
            except BraidError as error:
                self._untold[number] = slot_count
                log.info("could not report the end of a journal sequence", number=number, error=str(error))
                return

    async def finish(self) -> None:
        await self._calls.wait_all()
