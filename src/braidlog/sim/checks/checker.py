"""Finds in a history what a correct log would never have done.

It knows only operations, nothing of the system. The history may come from a simulated or from a real run. A final read
is assumed to come after everything else.
"""

from collections.abc import Iterator

from braidlog.sim.checks.anomaly import Anomaly, Kind
from braidlog.sim.checks.compaction import Gone, check_compaction
from braidlog.sim.checks.evidence import Evidence, merge
from braidlog.sim.checks.groups import GroupEvidence, check_group
from braidlog.sim.checks.log import check_log
from braidlog.sim.checks.ownership import check_ownership
from braidlog.sim.checks.polls import check_polls
from braidlog.sim.checks.transactions import TransactionEvidence, check_transactions
from braidlog.sim.history import (
    ALL_IS_WELL,
    Assigned,
    CommitOffset,
    CommittedPoll,
    Compacted,
    Event,
    FetchOffset,
    FinalCommitted,
    FinalRead,
    History,
    Journaled,
    ListOffset,
    Owned,
    Poll,
    Send,
    Transaction,
)

__all__ = ["Anomaly", "Kind", "check"]


def check(history: History) -> list[Anomaly]:
    """Find all anomalies of a history, in time order."""
    return sorted(_anomalies(history), key=lambda anomaly: anomaly.time_s)


def _anomalies(history: History) -> Iterator[Anomaly]:
    partitions, groups = _sort_out(history)
    for evidence in partitions.values():
        log = merge(evidence)
        gone = Gone(evidence, log)
        yield from check_log(evidence, log, gone)
        yield from check_polls(evidence, log, gone)
        yield from check_compaction(evidence, log, gone)
    well_s = next(
        (one.complete_s for one in history.operations if isinstance(one, Event) and one.what == ALL_IS_WELL), None
    )
    for group in groups.values():
        yield from check_group(group)
        yield from check_ownership(group, well_s)
    yield from check_transactions(_transactions(history))


def _transactions(history: History) -> TransactionEvidence:
    evidence = TransactionEvidence()
    for operation in history.operations:
        match operation:
            case Transaction():
                evidence.transactions.append(operation)
            case CommittedPoll():
                evidence.polls.append(operation)
            case FinalCommitted():
                evidence.finals[operation.topic, operation.partition] = operation
            case FetchOffset():
                evidence.fetches.append(operation)
    return evidence


def _sort_out(history: History) -> tuple[dict[tuple[str, int], Evidence], dict[str, GroupEvidence]]:
    partitions: dict[tuple[str, int], Evidence] = {}
    groups: dict[str, GroupEvidence] = {}
    compacted = {operation.topic: operation for operation in history.operations if isinstance(operation, Compacted)}
    journaled = {operation.topic: operation for operation in history.operations if isinstance(operation, Journaled)}

    for operation in history.operations:
        if isinstance(operation, Send | Poll | ListOffset | FinalRead):
            place = (operation.topic, operation.partition)
            evidence = partitions.get(place)
            if evidence is None:
                evidence = partitions[place] = Evidence(
                    *place, compaction=compacted.get(operation.topic), journal=journaled.get(operation.topic)
                )
            match operation:
                case Send():
                    evidence.sends.append(operation)
                case Poll():
                    evidence.polls.append(operation)
                case ListOffset():
                    evidence.list_offsets.append(operation)
                case FinalRead():
                    evidence.final = operation
        elif isinstance(operation, Assigned | CommitOffset | FetchOffset | Owned):
            group = groups.get(operation.group)
            if group is None:
                group = groups[operation.group] = GroupEvidence(operation.group)
            match operation:
                case Assigned():
                    group.assignments.append(operation)
                case Owned():
                    group.owned.setdefault((operation.topic, operation.partition), []).append(operation)
                case CommitOffset():
                    group.commits.setdefault((operation.topic, operation.partition), []).append(operation)
                case FetchOffset():
                    group.fetches.setdefault((operation.topic, operation.partition), []).append(operation)
    return partitions, groups
