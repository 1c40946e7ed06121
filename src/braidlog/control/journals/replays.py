"""Which journal sequences still need a replay. Pure.

This tells up to which scan everything is sequenced.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from braidlog.control.journals.sequences import JournalSequenceKey


@dataclass(slots=True)
class _Need:
    since_scan: int
    """The oldest scan that waits for a replay of the sequence."""
    until_scan: int
    """The newest scan that does."""
    tried_scan: int = -1
    """The newest scan for which a replay has failed."""

    @property
    def untried_scan(self) -> int:
        """The oldest scan for which nobody has tried to replay the sequence."""
        return max(self.since_scan, self.tried_scan + 1)


class ReplayNeeds:
    """Tracks scans and the replays that each of them needs.

    Scans end in the order of their numbers, which are above 0 and may skip some. A scan is replayed when every journal
    sequence that it found, or that was known when it ended, was replayed by a job that began after the scan was asked
    for. Then everything that was journaled before that is sequenced.
    """

    def __init__(self) -> None:
        self._needs: dict[JournalSequenceKey, _Need] = {}
        self._ended_scan = 0
        self._ended: list[int] = []
        """Scans that have ended and are not replayed yet, in order. Not every number belongs to a scan."""
        self._asked_ms: dict[int, int] = {}
        """When each scan that is not replayed yet was asked for."""
        self.replayed_scan = 0
        self.replayed_ms = 0
        """Everything journaled before this time is sequenced; 0: unknown."""
        self.tried_ms = 0
        """Everything journaled before this time is sequenced, or its replay was tried and failed."""
        self._untried: list[tuple[int, int]] = []
        """Scans that have ended, but for which some sequence was not tried, with the time when each was asked for."""

    def scan_asked(self, scan: int, now_ms: int) -> None:
        self._asked_ms[scan] = now_ms

    def scan_ended(self, scan: int, sequences: Iterable[JournalSequenceKey]) -> None:
        for key in sequences:
            need = self._needs.get(key)
            if need is None:
                self._needs[key] = _Need(scan, scan)
            else:
                need.until_scan = max(need.until_scan, scan)
        if scan > self._ended_scan:
            self._ended_scan = scan
            self._ended.append(scan)
            self._untried.append((scan, self._asked_ms.get(scan, 0)))
        self._advance()

    def sequence_replayed(self, key: JournalSequenceKey, scan: int) -> None:
        """Note a replay by a job that was planned when `scan` was the newest ended scan."""
        need = self._needs.get(key)
        if need is None:
            return
        if need.until_scan <= scan:
            del self._needs[key]
        else:
            need.since_scan = max(need.since_scan, scan + 1)
        self._advance()

    def sequence_complete(self, key: JournalSequenceKey) -> None:
        """Note that every file of the sequence is sequenced, in whatever way."""
        if self._needs.pop(key, None) is not None:
            self._advance()

    def sequence_failed(self, key: JournalSequenceKey, scan: int) -> None:
        """Note that a job failed for good.

        It was planned when `scan` was the newest ended scan.
        """
        need = self._needs.get(key)
        if need is not None:
            need.tried_scan = max(need.tried_scan, scan)
            self._advance()

    @property
    def untried(self) -> list[JournalSequenceKey]:
        """Journal sequences that nobody has tried to replay since the newest scan ended."""
        return [
            key for key, need in self._needs.items() if max(need.since_scan, need.tried_scan + 1) <= need.until_scan
        ]

    def tried_scan(self, key: JournalSequenceKey) -> int:
        """The newest scan that a sequence was replayed for in vain; -1 if there is none."""
        need = self._needs.get(key)
        return need.tried_scan if need is not None else -1

    @property
    def needed(self) -> list[JournalSequenceKey]:
        return list(self._needs)

    @property
    def newest_ended_scan(self) -> int:
        return self._ended_scan

    def _advance(self) -> None:
        waits_from = min((need.since_scan for need in self._needs.values()), default=self._ended_scan + 1)
        while self._ended and self._ended[0] < waits_from:
            self.replayed_scan = self._ended.pop(0)
        for scan in [each for each in self._asked_ms if each <= self.replayed_scan]:
            self.replayed_ms = max(self.replayed_ms, self._asked_ms.pop(scan))
        untried_from = min((need.untried_scan for need in self._needs.values()), default=self._ended_scan + 1)
        while self._untried and self._untried[0][0] < untried_from:
            self.tried_ms = max(self.tried_ms, self._untried.pop(0)[1])
        self.tried_ms = max(self.tried_ms, self.replayed_ms)
