"""Checks consumer groups: one owner per partition, and no committed offset lost."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from braidlog.sim.checks.anomaly import Anomaly
from braidlog.sim.history import Assigned, CommitOffset, FetchOffset, Owned


@dataclass(eq=False, slots=True)
class GroupEvidence:
    """All operations of the members of one group."""

    group: str
    assignments: list[Assigned] = field(default_factory=list)
    commits: dict[tuple[str, int], list[CommitOffset]] = field(default_factory=dict)
    fetches: dict[tuple[str, int], list[FetchOffset]] = field(default_factory=dict)
    owned: dict[tuple[str, int], list[Owned]] = field(default_factory=dict)


def check_group(evidence: GroupEvidence) -> Iterator[Anomaly]:
    yield from _double_assignments(evidence)
    for place, fetches in evidence.fetches.items():
        register = _Committed(evidence.commits.get(place, []))
        for fetch in fetches:
            yield from _check_fetch(register, fetch)


def _double_assignments(evidence: GroupEvidence) -> Iterator[Anomaly]:
    owners: dict[tuple[int, str, int], Assigned] = {}
    for assigned in evidence.assignments:
        for topic, partition in assigned.partitions:
            owner = owners.setdefault((assigned.generation, topic, partition), assigned)
            if owner.client != assigned.client:
                message = (
                    f"{topic}/{partition} belongs to both {owner.client} and {assigned.client} "
                    f"in generation {assigned.generation} of group {evidence.group}"
                )
                pair = (owner, assigned)
                yield Anomaly("double-assignment", message, topic, partition, assigned.complete_s, pair)


class _Committed:
    """The commits to one partition, as a register that a fetch reads.

    An acknowledged commit took effect at some moment of its span; an unknown one then, later, or never.
    """

    def __init__(self, commits: list[CommitOffset]) -> None:
        self._acknowledged = sorted(
            (commit for commit in commits if commit.outcome == "ok"), key=lambda commit: commit.complete_s
        )
        self._completed_s = [commit.complete_s for commit in self._acknowledged]
        self._highest: list[CommitOffset] = []
        self._latest: list[CommitOffset] = []
        """Among the acknowledged commits so far: the one with the highest offset, and the one that was invoked last."""
        for commit in self._acknowledged:
            highest = self._highest[-1] if self._highest else commit
            self._highest.append(commit if commit.offset > highest.offset else highest)
            latest = self._latest[-1] if self._latest else commit
            self._latest.append(commit if commit.invoke_s > latest.invoke_s else latest)
        self._invoked_s: dict[int, list[float]] = {}
        self._effect_until_s: dict[int, list[float]] = {}
        """Until when commits of each offset may have taken effect. `_invoked_s` says when they were invoked."""
        for commit in sorted(commits, key=lambda commit: commit.invoke_s):
            if commit.outcome == "failed":
                continue
            until_s = commit.complete_s if commit.outcome == "ok" else inf
            spans = self._effect_until_s.setdefault(commit.offset, [])
            spans.append(max(until_s, spans[-1]) if spans else until_s)
            self._invoked_s.setdefault(commit.offset, []).append(commit.invoke_s)

    def completed_before(self, time_s: float) -> tuple[CommitOffset, CommitOffset] | None:
        """Give the highest and the latest commit acknowledged before `time_s`."""
        count = bisect_left(self._completed_s, time_s)
        return (self._highest[count - 1], self._latest[count - 1]) if count else None

    def effect_until_s(self, offset: int, time_s: float) -> float | None:
        """Give the last moment at which a commit of `offset` may have taken effect.

        Only commits invoked by `time_s` count.
        """
        count = bisect_right(self._invoked_s.get(offset, []), time_s)
        return self._effect_until_s[offset][count - 1] if count else None


def _check_fetch(register: _Committed, fetch: FetchOffset) -> Iterator[Anomaly]:
    completed = register.completed_before(fetch.invoke_s)
    if completed is None:
        return
    highest, latest = completed
    until_s = register.effect_until_s(fetch.offset, fetch.complete_s)
    if until_s is None:
        # No commit of the fetched offset is known. A higher one than all known may be a commit that was not recorded.
        overwritten_by = highest if fetch.offset < highest.offset else None
    else:
        overwritten_by = latest if until_s < latest.invoke_s else None
    if overwritten_by is not None:
        message = (
            f"group {fetch.group} fetched offset {fetch.offset} for {fetch.topic}/{fetch.partition} "
            f"after {overwritten_by.client} had committed {overwritten_by.offset}"
        )
        pair = (overwritten_by, fetch)
        yield Anomaly("group-offset-went-back", message, fetch.topic, fetch.partition, fetch.complete_s, pair)
