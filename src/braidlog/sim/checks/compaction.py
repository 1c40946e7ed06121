"""Checks compacted partitions.

Only records with a later one of the same key, and tombstones whose retention is over, may be missing.
"""

from collections.abc import Iterator

from braidlog.sim.checks.anomaly import Anomaly, Kind
from braidlog.sim.checks.evidence import Evidence, MergedLog
from braidlog.sim.history import Send

TOMBSTONE_MARK = "!"


def key_of(value: str) -> str:
    return value.partition("=")[0]


def is_tombstone(value: str) -> bool:
    return value.partition("=")[2].startswith(TOMBSTONE_MARK)


class Gone:
    """Tells which records may have been compacted away by some time."""

    def __init__(self, evidence: Evidence, log: MergedLog) -> None:
        self._log = log
        compaction = evidence.compaction
        self.is_compacted = compaction is not None
        self._retention_s = compaction.delete_retention_s if compaction is not None else 0.0
        self._places: dict[str, list[tuple[int, float]]] = {}
        """The known offsets of each key, and when their records were sent."""
        self._unplaced: dict[str, list[Send]] = {}
        """Records that may be at any offset: no client was told it, and none has read them."""
        if self.is_compacted:
            self._gather(evidence)

    def _gather(self, evidence: Evidence) -> None:
        for offset in self._log.offsets:
            value = self._log.value_at[offset]
            self._places.setdefault(key_of(value), []).append((offset, self._sent_s(value)))
        placed = set(self._log.value_at.values())
        for send in evidence.sends:
            if send.outcome != "failed" and send.value not in placed:
                self._unplaced.setdefault(key_of(send.value), []).append(send)

    def _sent_s(self, value: str) -> float:
        sends = self._log.sends_by_value.get(value)
        return min(send.invoke_s for send in sends) if sends else 0.0

    def may_be(self, offset: int, value: str, at_s: float) -> bool:
        """Tell whether `value`, at `offset` (-1: unknown), may be gone by `at_s`."""
        if not self.is_compacted:
            return False
        key = key_of(value)
        if is_tombstone(value) and self._sent_s(value) + self._retention_s <= at_s:
            return True
        if any(later > offset and sent_s < at_s for later, sent_s in self._places.get(key, ())):
            return True
        return any(send.value != value and send.invoke_s < at_s for send in self._unplaced.get(key, ()))

    def newest(self) -> Iterator[tuple[str, int, str]]:
        """Yield each key with its record of the highest known offset."""
        for key, places in self._places.items():
            offset = places[-1][0]
            yield key, offset, self._log.value_at[offset]


def check_compaction(evidence: Evidence, log: MergedLog, gone: Gone) -> Iterator[Anomaly]:
    final = evidence.final
    if final is None or not gone.is_compacted:
        return
    present = {offset for offset, _ in final.records}
    by_key: dict[str, int] = {}
    for offset, value in final.records:
        by_key[key_of(value)] = offset
    for key, offset, value in gone.newest():
        if offset in present or offset < final.log_start_offset:
            continue
        if not gone.may_be(offset, value, final.complete_s):
            if any(send.outcome == "ok" for send in log.sends_by_value.get(value, ())):
                continue  # reported as a lost write already
            message = f"{value!r} at offset {offset} of {evidence.place} is gone, though it is the newest of its key"
            yield _anomaly(evidence, "lost-write", message, log, value, offset)
        elif key in by_key and is_tombstone(value):
            message = (
                f"{key!r} was deleted at offset {offset} of {evidence.place}, but the log still has it at {by_key[key]}"
            )
            yield _anomaly(evidence, "deleted-key-came-back", message, log, value, by_key[key])


def _anomaly(evidence: Evidence, kind: Kind, message: str, log: MergedLog, value: str, offset: int) -> Anomaly:
    final = evidence.final
    assert final is not None
    operations = (*log.sends_by_value.get(value, ()), final)
    return Anomaly(kind, message, evidence.topic, evidence.partition, final.complete_s, operations, offset)
