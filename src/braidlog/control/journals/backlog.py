"""Whether journals may still hold unsequenced batches, and which scan will tell."""

from typing import TypeAlias

from braidlog.control.journals.replays import ReplayNeeds
from braidlog.control.journals.sequences import JournalSequences
from braidlog.runtime.clock import Clock

GAPS_ASKED_MAX = 10_000
"""Gaps of classic producers that are remembered with the scan that settles each."""

ClassicGap: TypeAlias = tuple[int, int, int, int]
"""Producer id, producer epoch, partition id, and the sequence number before which others are missing."""


class JournalBacklog:
    """Counts requested scans against those whose findings are all sequenced."""

    def __init__(self, sequences: JournalSequences, clock: Clock) -> None:
        self._sequences = sequences
        self._clock = clock
        self.needs = ReplayNeeds()
        self.agents_journal = False
        """An agent may have journaled batches without telling the control plane."""
        self.newest_scan = 0
        self.wanted_scan = 0
        """Until it is replayed, journals may hold batches of classic topics."""
        self._is_expected = False
        self._asked: dict[ClassicGap, int] = {}
        """The scan that each gap of a classic producer has asked for."""

    def expect(self) -> None:
        """Note that there may be journals.

        Without a reason to think so, nobody has to look for any.
        """
        self._is_expected = True

    @property
    def may_exist(self) -> bool:
        return self._is_expected or bool(self._sequences.records)

    def is_behind(self) -> bool:
        """Whether journals may hold batches of classic topics.

        They were written while the control plane was away.
        """
        return self.wanted_scan > self.needs.replayed_scan

    def want_scan(self) -> int:
        """Ask for proof that everything journaled up to now is sequenced.

        Returns the scan that will give it.
        """
        self._is_expected = True
        self.wanted_scan = max(self.wanted_scan, self.newest_scan + 1)
        return self.newest_scan + 1

    def asks_for_scan(self, gap: ClassicGap) -> bool:
        """Whether the missing batches may be in the journal of an agent that was cut off.

        Such an agent took writes by itself. The batches are not there if a scan was replayed that began after the gap
        was first seen.
        """
        if not self.agents_journal:
            return False
        scan = self._asked.get(gap)
        if scan is None:
            scan = self._asked[gap] = self.want_scan()
            if len(self._asked) > GAPS_ASKED_MAX:
                del self._asked[next(iter(self._asked))]
        return scan > self.needs.replayed_scan

    def sequenced_until_ms(self) -> int:
        """Return the time before which everything journaled is sequenced."""
        return self.needs.replayed_ms if self.may_exist else self._clock.wall_ms()

    @property
    def scans_replayed(self) -> int:
        return self.needs.replayed_scan
