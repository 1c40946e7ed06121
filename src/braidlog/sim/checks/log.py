"""Checks a partition's log.

It must hold every acknowledged record once, nothing else, in the promised order.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from braidlog.sim.checks.anomaly import Anomaly, Kind
from braidlog.sim.checks.compaction import Gone
from braidlog.sim.checks.evidence import Evidence, MergedLog
from braidlog.sim.checks.journal import check_journaled_order
from braidlog.sim.history import AnyOperation, Send

DEAD_PRODUCER_ERROR = "out_of_order_sequence_number at the head of the line"


def check_log(evidence: Evidence, log: MergedLog, gone: Gone) -> Iterator[Anomaly]:
    yield from log.contradictions
    yield from _missing_final_read(evidence)
    yield from _offset_gap(evidence)
    yield from _lost_writes(evidence, log, gone)
    yield from _uninvited(evidence, log)
    yield from (_order(evidence, log) if evidence.journal is None else check_journaled_order(evidence, log))
    yield from _external_consistency(evidence)
    yield from _stale_lists(evidence)
    yield from _dead_producers(evidence)


def _anomaly(
    evidence: Evidence,
    kind: Kind,
    message: str,
    time_s: float,
    operations: Iterable[AnyOperation],
    offset: int = -1,
) -> Anomaly:
    return Anomaly(kind, message, evidence.topic, evidence.partition, time_s, tuple(operations), offset)


def _missing_final_read(evidence: Evidence) -> Iterator[Anomaly]:
    if evidence.final is None:
        last = next((send for send in reversed(evidence.sends) if send.outcome == "ok"), None)
        if last is not None:
            message = f"{evidence.place} has acknowledged records, but its log was not read at the end"
            yield _anomaly(evidence, "missing-final-read", message, last.complete_s, [last])


def _offset_gap(evidence: Evidence) -> Iterator[Anomaly]:
    final = evidence.final
    if final is None or evidence.compaction is not None:
        return
    expected = final.log_start_offset
    markers = frozenset(final.markers)
    for offset, _ in final.records:
        while expected in markers:
            expected += 1
        if offset != expected:
            break
        expected += 1
    else:
        while expected in markers:
            expected += 1
        if expected == final.high_watermark:
            return
        offset = final.high_watermark
    message = (
        f"the log of {evidence.place} is [{final.log_start_offset}, {final.high_watermark}), "
        f"but after {expected - final.log_start_offset} records, at offset {expected}, it goes on with {offset}"
    )
    yield _anomaly(evidence, "offset-gap", message, final.complete_s, [final], expected)


def _lost_writes(evidence: Evidence, log: MergedLog, gone: Gone) -> Iterator[Anomaly]:
    final = evidence.final
    if final is None:
        return
    start = final.log_start_offset
    for send in evidence.sends:
        if send.outcome != "ok" or send.value in log.final_values:
            continue
        may_be_deleted = send.offset < start if send.offset >= 0 else start > 0
        if not may_be_deleted and not gone.may_be(send.offset, send.value, final.complete_s):
            where = f"at offset {send.offset}" if send.offset >= 0 else "without an offset"
            message = f"{send.value!r} was acknowledged {where}, but the log of {evidence.place} does not have it"
            yield _anomaly(evidence, "lost-write", message, send.complete_s, [send, final])


def _uninvited(evidence: Evidence, log: MergedLog) -> Iterator[Anomaly]:
    """Find values that no client sent, and values that are there too often."""
    final = evidence.final
    if final is None:
        return  # A run that was cut short has not recorded all sends.
    first_at: dict[str, int] = {}
    times: dict[str, int] = {}
    for offset, value in log.entries:
        if value not in first_at:
            first_at[value] = offset
            sends = log.sends_by_value.get(value, [])
            if not any(send.outcome != "failed" for send in sends):
                what = f"was refused ({sends[0].error})" if sends else "was sent by nobody"
                message = f"{value!r} at offset {offset} of {evidence.place} {what}"
                time_s = sends[0].complete_s if sends else final.complete_s
                yield _anomaly(evidence, "phantom", message, time_s, [*sends, final], offset)
            continue
        times[value] = times.get(value, 1) + 1
        sends = [send for send in log.sends_by_value.get(value, []) if send.outcome != "failed"]
        may_repeat = any(send.retried and not send.producer for send in sends)
        if sends and not may_repeat and times[value] == len(sends) + 1:
            message = f"{value!r} is at offset {first_at[value]} of {evidence.place} and again at {offset}"
            yield _anomaly(evidence, "duplicate", message, sends[0].complete_s, [*sends, final], offset)


def _order(evidence: Evidence, log: MergedLog) -> Iterator[Anomaly]:
    """Check that records keep the order of sending.

    That holds for those of one producer id, and for those of one connection that were sent once.
    """
    newest: dict[tuple[str, str], tuple[Send, int]] = {}
    seen: set[str] = set()
    for offset, value in log.entries:
        sends = log.sends_by_value.get(value)
        if sends is None or value in seen:
            continue
        seen.add(value)
        send = sends[0]
        if send.outcome == "failed" or (not send.producer and (send.retried or send.outcome != "ok")):
            continue
        lane = (send.client, send.producer)
        before = newest.get(lane)
        if before is None or before[0].order < send.order:
            newest[lane] = (send, offset)
            continue
        kind: Kind = "order-within-producer" if send.producer else "order-within-connection"
        message = (
            f"{send.client} sent {value!r} (number {send.order}) before {before[0].value!r} (number "
            f"{before[0].order}), but in {evidence.place} they are at {offset} and {before[1]}"
        )
        pair = (send, before[0])
        yield _anomaly(evidence, kind, message, max(one.complete_s for one in pair), pair)


class _Acknowledged:
    """Finds the highest acknowledged offset that was known before some time."""

    def __init__(self, sends: Iterable[Send]) -> None:
        self.sends = sorted(
            (send for send in sends if send.outcome == "ok" and send.offset >= 0), key=lambda send: send.complete_s
        )
        self._completed_s = [send.complete_s for send in self.sends]
        self._highest: list[Send] = []
        for send in self.sends:
            highest = self._highest[-1] if self._highest else send
            self._highest.append(send if send.offset > highest.offset else highest)

    def highest_before(self, time_s: float) -> Send | None:
        """Give the highest offset known strictly before `time_s`.

        Operations at the same moment may have any order.
        """
        count = bisect_left(self._completed_s, time_s)
        return self._highest[count - 1] if count else None


def _external_consistency(evidence: Evidence) -> Iterator[Anomaly]:
    acknowledged = _Acknowledged(evidence.sends)
    for send in acknowledged.sends:
        earlier = acknowledged.highest_before(send.invoke_s)
        if earlier is not None and earlier.offset > send.offset:
            message = (
                f"{earlier.value!r} was acknowledged at offset {earlier.offset} of {evidence.place} before "
                f"{send.value!r} was sent, which got the lower offset {send.offset}"
            )
            yield _anomaly(evidence, "external-consistency", message, send.complete_s, [earlier, send])


def _stale_lists(evidence: Evidence) -> Iterator[Anomaly]:
    if not evidence.list_offsets:
        return
    acknowledged = _Acknowledged(evidence.sends)
    for listed in evidence.list_offsets:
        send = acknowledged.highest_before(listed.invoke_s) if listed.which == "latest" else None
        if send is not None and listed.offset <= send.offset:
            message = (
                f"{listed.client} was told that {evidence.place} ends at {listed.offset}, "
                f"after {send.value!r} was acknowledged at offset {send.offset}"
            )
            yield _anomaly(evidence, "stale-list", message, listed.complete_s, [send, listed])


def _dead_producers(evidence: Evidence) -> Iterator[Anomaly]:
    """Report each producer id once: all records of a batch get the same answer."""
    dead: dict[tuple[str, str], list[Send]] = {}
    for send in evidence.sends:
        if send.error and DEAD_PRODUCER_ERROR in send.error:
            dead.setdefault((send.client, send.producer), []).append(send)
    for (client, producer), sends in dead.items():
        message = (
            f"{client} could not go on under producer id {producer}: {evidence.place} expects another sequence number "
            f"than that of {sends[0].value!r}, though everything before it is acknowledged"
        )
        yield _anomaly(evidence, "dead-producer", message, sends[0].complete_s, sends)
