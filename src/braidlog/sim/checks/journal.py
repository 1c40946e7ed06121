"""Checks the order of records that may be acknowledged before they are sequenced."""

from collections.abc import Iterator

from msgspec import UnsetType

from braidlog.sim.checks.anomaly import Anomaly, Kind
from braidlog.sim.checks.evidence import Evidence, MergedLog
from braidlog.sim.history import Send


def check_journaled_order(evidence: Evidence, log: MergedLog) -> Iterator[Anomaly]:
    """Check the order that journaled topics promise.

    Records of an idempotent producer keep its order. For other records, less is promised: a record acknowledged with an
    offset lies behind all that its connection acknowledged before it, and no record lies before an offset that some
    client knew when the record was sent.
    """
    at: dict[str, tuple[Send, int]] = {}
    for offset, value in log.entries:
        sends = log.sends_by_value.get(value)
        if sends is not None and value not in at and sends[0].outcome != "failed":
            at[value] = sends[0], offset
    placed = list(at.values())
    if evidence.journal is not None and evidence.journal.keeps_order:
        yield from _within_producers(evidence, placed)
    yield from _within_connections(evidence, placed)
    yield from _behind_what_was_told(evidence, placed)


def _within_producers(evidence: Evidence, placed: list[tuple[Send, int]]) -> Iterator[Anomaly]:
    newest: dict[tuple[str, str], tuple[Send, int]] = {}
    for send, offset in placed:
        if not send.producer:
            continue
        lane = (send.client, send.producer)
        before = newest.get(lane)
        if before is None or before[0].order < send.order:
            newest[lane] = send, offset
        elif send.outcome == "ok":
            # A record that its producer gave up may be appended late.
            yield _out_of_order(evidence, "order-within-producer", (send, offset), before)


def _within_connections(evidence: Evidence, placed: list[tuple[Send, int]]) -> Iterator[Anomaly]:
    """Check each connection.

    When a topic leaves the journal, no later record may overtake one left there.
    """
    newest: dict[tuple[str, str], tuple[Send, int]] = {}
    for send, offset in placed:
        if send.outcome != "ok" or send.retried or isinstance(send.connection, UnsetType):
            continue
        line = (send.client, send.connection)
        before = newest.get(line)
        if not send.lazy:
            if before is None or before[0].order < send.order:
                newest[line] = send, offset
        elif before is not None and before[0].order > send.order:
            yield _out_of_order(evidence, "order-within-connection", (send, offset), before)


def _behind_what_was_told(evidence: Evidence, placed: list[tuple[Send, int]]) -> Iterator[Anomaly]:
    """Check that no record lies before an offset known when it was sent."""
    told_s: float | None = None
    first_told: tuple[Send, int] | None = None
    for send, offset in reversed(placed):
        if told_s is not None and first_told is not None and send.lazy and send.invoke_s > told_s:
            message = (
                f"{first_told[0].value!r} was acknowledged at offset {first_told[1]} of {evidence.place} before "
                f"{send.value!r} was sent, which lies at the lower offset {offset}"
            )
            yield Anomaly(
                "external-consistency",
                message,
                evidence.topic,
                evidence.partition,
                send.complete_s,
                (first_told[0], send),
                offset,
            )
        if send.outcome == "ok" and not send.lazy and (told_s is None or send.complete_s < told_s):
            told_s, first_told = send.complete_s, (send, offset)


def _out_of_order(evidence: Evidence, kind: Kind, late: tuple[Send, int], before: tuple[Send, int]) -> Anomaly:
    message = (
        f"{late[0].client} sent {late[0].value!r} (number {late[0].order}) before {before[0].value!r} (number "
        f"{before[0].order}), but in {evidence.place} they are at {late[1]} and {before[1]}"
    )
    time_s = max(late[0].complete_s, before[0].complete_s)
    return Anomaly(kind, message, evidence.topic, evidence.partition, time_s, (late[0], before[0]))
