"""Checks groups of the new protocol.

A partition has one reader at a time, takes only its commits, and is never left without a reader.
"""

from collections.abc import Iterator
from itertools import pairwise

from braidlog.sim.checks.anomaly import Anomaly
from braidlog.sim.checks.groups import GroupEvidence

SETTLED_S = 14.0
"""This long after the last fault, every partition that was ever read has a reader."""


def check_ownership(evidence: GroupEvidence, well_s: float | None) -> Iterator[Anomaly]:
    """Check one group.

    `well_s` is when all faults had ended; members stay for longer than `SETTLED_S` after it.
    """
    for (topic, partition), spans in evidence.owned.items():
        place = f"{topic}/{partition} of group {evidence.group}"
        ordered = sorted(spans, key=lambda span: (span.invoke_s, span.complete_s))
        for before, after in pairwise(ordered):
            if before.client != after.client and after.invoke_s < before.complete_s:
                message = f"{before.client} and {after.client} both had {place}"
                yield Anomaly("double-ownership", message, topic, partition, after.invoke_s, (before, after))
        for commit in evidence.commits.get((topic, partition), []):
            owner = next(
                (
                    span
                    for span in ordered
                    if span.client != commit.client
                    and span.invoke_s < commit.invoke_s
                    and commit.complete_s < span.complete_s
                ),
                None,
            )
            if commit.outcome == "ok" and owner is not None:
                message = f"{commit.client} committed {commit.offset} for {place} while {owner.client} had it"
                yield Anomaly("foreign-commit", message, topic, partition, commit.complete_s, (owner, commit))
        if well_s is not None:
            settled_s = well_s + SETTLED_S
            if not any(span.invoke_s <= settled_s <= span.complete_s for span in ordered):
                last = max(ordered, key=lambda span: span.complete_s)
                message = f"nobody reads {place} {SETTLED_S:.0f} s after all was well again; the last was {last.client}"
                yield Anomaly("orphaned-partition", message, topic, partition, settled_s, (last,))
