"""Which scan each sequence still needs a replay for, and so up to which scan everything is sequenced. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from braidlog.control.sequences import SequenceKey


@dataclass(slots=True)
class _Need:
    since_scan: int
    """The oldest that waits for a replay of the sequence."""
    until_scan: int
    """The newest."""


class ReplayNeeds:
    """Scans end in the order of their numbers, which are above 0 and may leave some out.

    A scan is replayed when each sequence that it has found, or that was known when it ended, was replayed by a job that
    began after it was asked for: then all that was journaled before that is sequenced.
    """

    def __init__(self) -> None:
        self._needs: dict[SequenceKey, _Need] = {}
        self._ended_scan = 0
        self._ended: list[int] = []
        """Scans that have ended and are not replayed, in their order. Not every number is that of a scan."""
        self._asked_ms: dict[int, int] = {}
        """When each scan was asked for that is not replayed yet."""
        self.replayed_scan = 0
        self.replayed_ms = 0
        """All that was journaled before this time is sequenced; 0: nobody knows."""

    def scan_asked(self, scan: int, now_ms: int) -> None:
        self._asked_ms[scan] = now_ms

    def scan_ended(self, scan: int, sequences: Iterable[SequenceKey]) -> None:
        for key in sequences:
            need = self._needs.get(key)
            if need is None:
                self._needs[key] = _Need(scan, scan)
            else:
                need.until_scan = max(need.until_scan, scan)
        if scan > self._ended_scan:
            self._ended_scan = scan
            self._ended.append(scan)
        self._advance()

    def sequence_replayed(self, key: SequenceKey, scan: int) -> None:
        """By a job that was planned when `scan` was the newest that had ended."""
        need = self._needs.get(key)
        if need is None:
            return
        if need.until_scan <= scan:
            del self._needs[key]
        else:
            need.since_scan = max(need.since_scan, scan + 1)
        self._advance()

    def sequence_complete(self, key: SequenceKey) -> None:
        """Nothing of it is left to sequence, by whichever way it was."""
        if self._needs.pop(key, None) is not None:
            self._advance()

    @property
    def needed(self) -> list[SequenceKey]:
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
