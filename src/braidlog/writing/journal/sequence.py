"""The slots of one journal sequence, as its writer fills them. Pure."""

from braidlog.objects.keys import SLOTS_IN_FLIGHT_MAX, SLOTS_PER_SEQUENCE_MAX

IDLE_S_MAX = 120.0
"""A sequence that gets no file for this long is closed: an idle agent has none that must be looked at. One that gets a
file every minute goes on until it is full."""


class JournalSequence:
    """Hands out consecutive slots, within a limit.

    None is `SLOTS_IN_FLIGHT_MAX` or more above the lowest incomplete one.

    Whoever seals a sequence puts a fence into every empty slot of that window, and then no file can appear any more. So
    a slot whose file failed is never skipped: its sequence is left instead, because the file may still arrive.

    Times come from a clock that goes on while the machine is suspended: those who close sequences do not wait for it.
    """

    def __init__(self, number: int, *, opened_s: float, age_s_max: float) -> None:
        self.number = number
        self._opened_s = opened_s
        self._age_s_max = age_s_max
        self._filled_s = opened_s
        """When it last got a file."""
        self._next_slot = 0
        self._in_flight: set[int] = set()
        self._completed: set[int] = set()
        """Complete slots above the lowest incomplete one."""
        self._lowest_incomplete = 0
        self._is_ended = False
        self._has_failed = False

    def take_slot(self, now_s: float) -> int | None:
        """Return the slot for the next file; None if there is no room.

        There may be no room now, or never again (`is_closed`).
        """
        if self.is_closed(now_s) or self._next_slot - self._lowest_incomplete >= SLOTS_IN_FLIGHT_MAX:
            return None
        slot = self._next_slot
        self._next_slot += 1
        self._in_flight.add(slot)
        self._filled_s = now_s
        return slot

    def complete(self, slot: int) -> None:
        """Note that the slot's file is stored."""
        assert self._lowest_incomplete <= slot < self._next_slot
        assert slot not in self._completed
        self._in_flight.discard(slot)
        self._completed.add(slot)
        while self._lowest_incomplete in self._completed:
            self._completed.remove(self._lowest_incomplete)
            self._lowest_incomplete += 1

    def end(self) -> None:
        """Take no more slots."""
        self._is_ended = True

    def leave(self, slot: int) -> None:
        """Take no more slots: the slot's file has failed, or the sequence is sealed."""
        self._is_ended = self._has_failed = True
        self._in_flight.discard(slot)

    @property
    def is_abandoned(self) -> bool:
        """Whether it was left, and none of its other files is under way any more."""
        return self._has_failed and not self._in_flight

    def is_closed(self, now_s: float) -> bool:
        """Whether no more files will be put here."""
        if self._is_ended or self._next_slot >= SLOTS_PER_SEQUENCE_MAX:
            return True
        return now_s >= min(self._opened_s + self._age_s_max, self._filled_s + IDLE_S_MAX)

    def slot_count(self, now_s: float) -> int | None:
        """Return how many files it has, once it is closed and all are stored; else None."""
        if self._has_failed or self._completed or self._lowest_incomplete < self._next_slot:
            return None
        return self._next_slot if self.is_closed(now_s) else None

    def may_acknowledge(self, now_s: float) -> bool:
        """Whether a file that is stored now will certainly be found.

        In a much older sequence, fences may have been deleted after all its files were sequenced. A file that a process
        put there after a long sleep might be taken for one of those.
        """
        return now_s < self._opened_s + 2 * self._age_s_max
