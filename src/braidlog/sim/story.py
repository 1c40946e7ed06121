"""Tells the story of an anomaly.

A story lists the operations on the records concerned, and the faults around them.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from braidlog.sim.checks.anomaly import Anomaly
from braidlog.sim.history import (
    AnyOperation,
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

BEFORE_S = 15.0
"""Events up to this long before the first operation of the story belong to it."""
RECORDS_SHOWN_MAX = 3
GROUP_KINDS = frozenset({"double-assignment", "group-offset-went-back"})


def tell(history: History, anomalies: Sequence[Anomaly], *, lines_max: int = 40) -> str:
    """Tell what led to the first anomaly, in time order.

    Operations that contradict each other are marked with `>`.
    """
    if not anomalies:
        return "Nothing is wrong with this history."
    first = anomalies[0]
    head = [f"{first.kind} at {first.time_s:.3f} s: {first.message}"]
    if len(anomalies) > 1:
        counts = Counter(anomaly.kind for anomaly in anomalies[1:])
        head.append("and then: " + ", ".join(f"{count} x {kind}" for kind, count in sorted(counts.items())))
    concern = _concern_of_group(first) if first.kind in GROUP_KINDS else _concern_of_log(first)
    told = [operation for operation in history.operations if operation in first.operations or concern(operation)]
    begin_s = min((one.invoke_s for one in told if not isinstance(one, FinalRead)), default=first.time_s) - BEFORE_S
    end_s = max((one.complete_s for one in told), default=first.time_s)
    told += [one for one in history.operations if isinstance(one, Event) and begin_s <= one.invoke_s <= end_s]
    told.sort(key=lambda one: (one.invoke_s, one.complete_s))
    values, offsets = _subject(first)
    lines = [
        f"{'>' if one in first.operations else ' '} {_span(one)}  {_sentence(one, values, offsets)}" for one in told
    ]
    body = _elide(lines, lines_max - len(head))
    return "\n".join(head + body)


# ── what belongs to the story ──


def _subject(anomaly: Anomaly) -> tuple[frozenset[str], frozenset[int]]:
    """Give the values and the offsets that an anomaly is about."""
    values = {one.value for one in anomaly.operations if isinstance(one, Send)}
    values |= {value for one in anomaly.operations if isinstance(one, Transaction) for _, _, value in one.values}
    offsets = {one.offset for one in anomaly.operations if isinstance(one, Send) and one.offset >= 0}
    if anomaly.offset >= 0:
        offsets.add(anomaly.offset)
    return frozenset(values), frozenset(offsets)


def _concern_of_log(anomaly: Anomaly) -> Callable[[AnyOperation], bool]:
    values, offsets = _subject(anomaly)

    def concerns(operation: AnyOperation) -> bool:
        match operation:
            case Send():
                is_same = operation.value in values or operation.offset in offsets
            case Poll() | CommittedPoll() | FinalCommitted():
                is_same = any(offset in offsets or value in values for offset, value in operation.records)
            case Transaction():
                return any(value in values for _, _, value in operation.values)
            case FinalRead():
                is_same = True
            case _:
                return False
        return is_same and (operation.topic, operation.partition) == (anomaly.topic, anomaly.partition)

    return concerns


def _concern_of_group(anomaly: Anomaly) -> Callable[[AnyOperation], bool]:
    """List the group's operations on the partition during the story."""
    place = (anomaly.topic, anomaly.partition)
    groups = {one.group for one in anomaly.operations if isinstance(one, Assigned | CommitOffset | FetchOffset | Owned)}
    begin_s = min(one.invoke_s for one in anomaly.operations)
    end_s = max(one.complete_s for one in anomaly.operations)

    def concerns(operation: AnyOperation) -> bool:
        if operation.complete_s < begin_s or operation.invoke_s > end_s:
            return False
        match operation:
            case Assigned():
                return operation.group in groups and place in operation.partitions
            case CommitOffset() | FetchOffset() | Owned():
                return operation.group in groups and (operation.topic, operation.partition) == place
            case _:
                return False

    return concerns


# ── words ──

_Placed = Send | Poll | ListOffset | CommitOffset | FetchOffset | Owned | FinalRead | CommittedPoll | FinalCommitted


def _span(operation: AnyOperation) -> str:
    begin = f"{operation.invoke_s:9.3f}"
    return f"{begin} s" + (
        f" to {operation.complete_s:9.3f} s" if operation.complete_s > operation.invoke_s else " " * 15
    )


def _sentence(operation: AnyOperation, values: frozenset[str], offsets: frozenset[int]) -> str:
    match operation:
        case Event():
            return f"── {operation.what} ──"
        case Compacted():
            return f"{operation.topic} is compacted, and tombstones stay for {operation.delete_retention_s:.0f} s"
        case Journaled():
            return f"{operation.topic} may be acknowledged before it has offsets"
        case Send():
            under = f" under producer id {operation.producer}" if operation.producer else ""
            again = " more than once" if operation.retried else ""
            return (
                f"{operation.client} sends {operation.value!r} (number {operation.order}) to {_place(operation)}"
                f"{under}{again}: {_answer(operation)}"
            )
        case Poll():
            reset = ", having moved there," if operation.is_reset else ""
            return (
                f"{operation.client} fetches {_place(operation)} from {operation.fetch_offset}{reset} and is given "
                f"{_records(operation.records, values, offsets)}; the log starts at {operation.log_start_offset}"
            )
        case ListOffset():
            return (
                f"{operation.client} asks for the {operation.which} offset of {_place(operation)}: {operation.offset}"
            )
        case CommitOffset():
            return (
                f"{operation.client} commits {operation.offset} of {_place(operation)} for group {operation.group}: "
                f"{operation.outcome}"
            )
        case FetchOffset():
            found = operation.offset if operation.offset >= 0 else "none"
            return f"{operation.client} asks for group {operation.group}'s offset of {_place(operation)}: {found}"
        case Assigned():
            partitions = ", ".join(f"{topic}/{partition}" for topic, partition in operation.partitions) or "nothing"
            return (
                f"{operation.client} is given {partitions} in generation {operation.generation} "
                f"of group {operation.group}"
            )
        case Owned():
            return (
                f"{operation.client} has {_place(operation)} of group {operation.group} "
                f"until {operation.complete_s:.3f} s"
            )
        case Transaction():
            offset = f", and {operation.offset} for group {operation.group}" if operation.group else ""
            return (
                f"{operation.client} writes {len(operation.values)} records in its transaction {operation.number}"
                f"{offset}: {operation.outcome}"
            )
        case CommittedPoll():
            return (
                f"{operation.client} fetches what is committed of {_place(operation)} from {operation.fetch_offset} to "
                f"{operation.next_offset} and is given {_records(operation.records, values, offsets)}"
            )
        case FinalCommitted():
            return (
                f"the final read of what is committed of {_place(operation)}, stable up to {operation.stable_offset} "
                f"of {operation.high_watermark}, has {_records(operation.records, values, offsets)}"
            )
        case FinalRead():
            return (
                f"the final read of {_place(operation)} [{operation.log_start_offset}, {operation.high_watermark}) "
                f"has {_records(operation.records, values, offsets)}"
            )


def _place(operation: _Placed) -> str:
    return f"{operation.topic}/{operation.partition}"


def _answer(send: Send) -> str:
    match send.outcome:
        case "ok":
            return f"acknowledged at offset {send.offset}" if send.offset >= 0 else "acknowledged, offset not told"
        case "failed":
            return f"refused ({send.error})" if send.error else "refused"
        case "unknown":
            return f"nobody knows ({send.error})" if send.error else "nobody knows"


def _records(records: Sequence[tuple[int, str]], values: frozenset[str], offsets: frozenset[int]) -> str:
    """Describe records: how many there are, and those that the story is about."""
    if not records:
        return "no records"
    shown = [f"{value!r} at {offset}" for offset, value in records if offset in offsets or value in values]
    more = f" and {len(shown) - RECORDS_SHOWN_MAX} more" if len(shown) > RECORDS_SHOWN_MAX else ""
    among = f", among them {', '.join(shown[:RECORDS_SHOWN_MAX])}{more}" if shown else ""
    count = "1 record" if len(records) == 1 else f"{len(records)} records"
    return f"{count} from {records[0][0]} to {records[-1][0]}{among}"


def _elide(lines: list[str], lines_max: int) -> list[str]:
    """Shorten a story: leave out lines from the middle first, and marked lines last."""
    if len(lines) <= lines_max:
        return lines
    ranked = sorted(range(len(lines)), key=lambda at: (not lines[at].startswith(">"), min(at, len(lines) - 1 - at), at))
    for kept_count in range(max(lines_max - 1, 0), -1, -1):
        short = _with_gaps(lines, sorted(ranked[:kept_count]))
        if len(short) <= max(lines_max, 1):
            return short
    return []


def _with_gaps(lines: list[str], kept: list[int]) -> list[str]:
    short: list[str] = []
    next_at = 0
    for at in [*kept, len(lines)]:
        if at > next_at:
            short.append(f"  … {at - next_at} more …")
        if at < len(lines):
            short.append(lines[at])
        next_at = at + 1
    return short
