"""Checks each consumer: its offsets only rise, and none is left out."""

from bisect import bisect_left
from collections.abc import Iterator

from braidlog.sim.checks.anomaly import Anomaly, Kind
from braidlog.sim.checks.compaction import Gone
from braidlog.sim.checks.evidence import Evidence, MergedLog
from braidlog.sim.history import Poll


def check_polls(evidence: Evidence, log: MergedLog, gone: Gone) -> Iterator[Anomaly]:
    previous: dict[str, tuple[Poll, int]] = {}
    for poll in evidence.polls:
        before = None if poll.is_reset else previous.get(poll.client)
        if before is not None:
            yield from _check_joint(evidence, log, gone, *before, poll)
        yield from _check_records(evidence, log, gone, poll)
        end_offset = max((offset + 1 for offset, _ in poll.records), default=0)
        previous[poll.client] = (poll, max(end_offset, poll.fetch_offset))


def _check_records(evidence: Evidence, log: MergedLog, gone: Gone, poll: Poll) -> Iterator[Anomaly]:
    next_offset = poll.fetch_offset
    skips: list[tuple[int, int]] = []
    for offset, _ in poll.records:
        if offset != next_offset:
            if offset < next_offset:
                message = f"was given offset {offset} where {next_offset} was the least that could come"
                yield _anomaly(evidence, "non-monotonic-poll", offset, message, poll)
                return
            skips.append((next_offset, offset))
        next_offset = offset + 1
    for from_offset, to_offset in skips:
        yield from _check_skip(evidence, log, gone, from_offset, to_offset, poll)


def _check_joint(
    evidence: Evidence, log: MergedLog, gone: Gone, before: Poll, end_offset: int, poll: Poll
) -> Iterator[Anomaly]:
    """Check the range from the end of a poll to the start of the next one."""
    if poll.fetch_offset < end_offset:
        message = f"fetched from {poll.fetch_offset} though its poll before ended at {end_offset}"
        yield _anomaly(evidence, "non-monotonic-poll", poll.fetch_offset, message, before, poll)
    elif poll.fetch_offset > end_offset:
        yield from _check_skip(evidence, log, gone, end_offset, poll.fetch_offset, before, poll)


def _check_skip(
    evidence: Evidence, log: MergedLog, gone: Gone, from_offset: int, to_offset: int, *polls: Poll
) -> Iterator[Anomaly]:
    """Find offsets in [from_offset, to_offset) that a consumer should have read."""
    least = max(from_offset, polls[-1].log_start_offset)
    at = bisect_left(log.offsets, least)
    end = bisect_left(log.offsets, to_offset)
    while at < end and gone.may_be(log.offsets[at], log.value_at[log.offsets[at]], polls[-1].complete_s):
        at += 1
    if at < end:
        skipped = log.offsets[at]
        message = (
            f"went from {from_offset} to {to_offset} and was never given offset {skipped} ({log.value_at[skipped]!r})"
        )
        yield _anomaly(evidence, "skipped-poll", skipped, message, *polls)


def _anomaly(evidence: Evidence, kind: Kind, offset: int, message: str, *polls: Poll) -> Anomaly:
    text = f"{polls[-1].client} in {evidence.place} {message}"
    return Anomaly(kind, text, evidence.topic, evidence.partition, polls[-1].complete_s, polls, offset)
