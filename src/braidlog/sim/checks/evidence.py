"""Collects what a history says about one partition, and merges it into one log."""

from dataclasses import dataclass, field

from braidlog.sim.checks.anomaly import Anomaly
from braidlog.sim.history import Compacted, FinalRead, Journaled, ListOffset, Poll, Send


@dataclass(eq=False, slots=True)
class Evidence:
    """All operations on one partition, each list in the order of completion."""

    topic: str
    partition: int
    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    list_offsets: list[ListOffset] = field(default_factory=list)
    final: FinalRead | None = None
    """The last one, if there are several."""
    compaction: Compacted | None = None
    """Set for compacted topics."""
    journal: Journaled | None = None
    """Set for topics whose records may be acknowledged before they have offsets."""

    @property
    def place(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(eq=False, slots=True)
class MergedLog:
    """A partition's log, as far as clients saw it.

    From its start offset on, only the final read counts. Records that were deleted before it, or all if there was no
    final read, come from what producers were told and what consumers read.
    """

    sends_by_value: dict[str, list[Send]]
    final_values: frozenset[str]
    value_at: dict[int, str]
    entries: list[tuple[int, str]]
    """Ordered by offset. An entry that the final read has twice is here twice."""
    offsets: list[int]
    """Ascending, each once."""
    contradictions: list[Anomaly]


def merge(evidence: Evidence) -> MergedLog:
    """Merge all accounts into one log, and note their contradictions."""
    return _Merge(evidence).run()


class _Merge:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._final = evidence.final
        self._value_at: dict[int, str] = {}
        self._witness: dict[int, Send | Poll] = {}
        """The operation that showed an offset which the final read does not cover."""
        self._sends_by_value: dict[str, list[Send]] = {}
        self._final_values: frozenset[str] = frozenset()
        self._contradictions: list[Anomaly] = []
        self._reported: set[tuple[int, str]] = set()

    def run(self) -> MergedLog:
        self._take_final()
        value_at = self._value_at
        for send in self._evidence.sends:
            self._sends_by_value.setdefault(send.value, []).append(send)
            if send.outcome == "ok" and send.offset >= 0 and value_at.get(send.offset) != send.value:
                self._take(send.offset, send.value, send)
        for poll in self._evidence.polls:
            for offset, value in poll.records:
                if value_at.get(offset) != value:
                    self._take(offset, value, poll)
        offsets = sorted(value_at)
        entries = [(offset, value_at[offset]) for offset in offsets if offset in self._witness]
        if self._final is not None:
            entries += sorted(self._final.records, key=lambda entry: entry[0])
        if self._evidence.compaction is not None:
            entries.sort(key=lambda entry: entry[0])
        return MergedLog(
            sends_by_value=self._sends_by_value,
            final_values=self._final_values,
            value_at=value_at,
            entries=entries,
            offsets=offsets,
            contradictions=self._contradictions,
        )

    def _take_final(self) -> None:
        if self._final is None:
            return
        for offset, value in self._final.records:
            known = self._value_at.setdefault(offset, value)
            if known != value:
                self._contradict(offset, value, f"the final read has both {known!r} and {value!r}")
        self._final_values = frozenset(value for _, value in self._final.records)

    def _take(self, offset: int, value: str, teller: Send | Poll) -> None:
        """Take an account of an offset that is new, or that differs from the known one."""
        known = self._value_at.get(offset)
        if known is not None:
            witness = self._witness.get(offset)
            other = f"{witness.client} saw" if witness else "the final read has"
            self._contradict(offset, value, f"{_told(teller, value)}, but {other} {known!r}", teller, witness)
        elif self._final is None or offset < self._final.log_start_offset or self._may_be_compacted(value):
            self._value_at[offset] = value
            self._witness[offset] = teller
        elif value in self._final_values or not self._is_acknowledged(value):
            # An acknowledged value that is nowhere is reported as a lost write instead.
            message = f"{_told(teller, value)}, but the final read has nothing there"
            self._contradict(offset, value, message, teller)

    def _may_be_compacted(self, value: str) -> bool:
        """Tell whether compaction may have removed it.

        `check_compaction` checks that it was allowed. A value at another offset was moved.
        """
        return self._evidence.compaction is not None and value not in self._final_values

    def _is_acknowledged(self, value: str) -> bool:
        return any(send.outcome == "ok" for send in self._sends_by_value.get(value, ()))

    def _contradict(self, offset: int, value: str, what: str, *tellers: Send | Poll | None) -> None:
        if (offset, value) in self._reported:
            return
        self._reported.add((offset, value))
        operations = [teller for teller in tellers if teller is not None]
        seen_by = (self._final,) if self._final and len(operations) < 2 else ()
        involved = (*operations, *seen_by)
        self._contradictions.append(
            Anomaly(
                "inconsistent-offsets",
                f"offset {offset} of {self._evidence.place}: {what}",
                self._evidence.topic,
                self._evidence.partition,
                max(operation.complete_s for operation in operations or involved),
                involved,
                offset,
            )
        )


def _told(teller: Send | Poll, value: str) -> str:
    return f"{teller.client} {'was told of' if isinstance(teller, Send) else 'read'} {value!r}"
