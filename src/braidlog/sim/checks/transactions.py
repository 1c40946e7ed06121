"""Checks transactions.

Readers see all of a transaction or nothing, and nothing before its commit. The same holds for its offsets.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from braidlog.sim.checks.anomaly import Anomaly
from braidlog.sim.history import CommittedPoll, FetchOffset, FinalCommitted, Transaction


@dataclass(eq=False, slots=True)
class TransactionEvidence:
    """All operations of transactions and of readers of committed data."""

    transactions: list[Transaction] = field(default_factory=list)
    polls: list[CommittedPoll] = field(default_factory=list)
    finals: dict[tuple[str, int], FinalCommitted] = field(default_factory=dict)
    fetches: list[FetchOffset] = field(default_factory=list)


def check_transactions(evidence: TransactionEvidence) -> Iterator[Anomaly]:
    if not evidence.transactions:
        return
    owners = {value: each for each in evidence.transactions for _, _, value in each.values}
    yield from _stuck(evidence)
    yield from _torn(evidence)
    yield from _early_reads(evidence, owners)
    yield from _skips(evidence)
    yield from _offsets(evidence)


def _stuck(evidence: TransactionEvidence) -> Iterator[Anomaly]:
    for (topic, partition), final in evidence.finals.items():
        if final.stable_offset < final.high_watermark:
            message = (
                f"{topic}/{partition} ends at {final.high_watermark}, but a transaction from {final.stable_offset} on "
                f"was never ended"
            )
            yield Anomaly("stuck-transaction", message, topic, partition, final.complete_s, (final,))


def _torn(evidence: TransactionEvidence) -> Iterator[Anomaly]:
    """Check that a committed transaction is there in full.

    One with an unknown end is there in full or not at all.
    """
    seen: dict[str, int] = {}
    for final in evidence.finals.values():
        for _, value in final.records:
            seen[value] = seen.get(value, 0) + 1
    for each in evidence.transactions:
        readable = [value for topic, partition, value in each.values if (topic, partition) in evidence.finals]
        present = [value for value in readable if value in seen]
        if not readable or (each.outcome == "unknown" and not present) or each.outcome == "aborted":
            continue
        missing = [value for value in readable if value not in seen]
        if missing:
            topic, partition, _ = each.values[0]
            what = "was committed" if each.outcome == "committed" else "ended in a way that nobody knows"
            message = f"transaction {each.number} of {each.client} {what}: {present} can be read, {missing} cannot"
            yield Anomaly("torn-transaction", message, topic, partition, each.complete_s, (each,))


def _early_reads(evidence: TransactionEvidence, owners: dict[str, Transaction]) -> Iterator[Anomaly]:
    """Check that no reader sees aborted records.

    Nor may it see records before their producer asked to commit.
    """
    final_values = {value for final in evidence.finals.values() for _, value in final.records}
    reads: list[CommittedPoll | FinalCommitted] = [*evidence.polls, *evidence.finals.values()]
    reported: set[str] = set()
    for read in reads:
        for offset, value in read.records:
            owner = owners.get(value)
            if owner is None or value in reported:
                continue
            invoked_s = owner.commit_invoked_s
            if owner.outcome == "aborted" or invoked_s is None:
                why = "which was never committed"
            elif read.complete_s < invoked_s:
                why = f"whose commit was asked for only at {invoked_s:.3f} s"
            elif evidence.finals and value not in final_values:
                why = "which nobody can read in the end"
            else:
                continue
            reported.add(value)
            message = (
                f"{read.client} was given {value!r} at offset {offset} of {read.topic}/{read.partition}, "
                f"of transaction {owner.number} of {owner.client}, {why}"
            )
            yield Anomaly("aborted-read", message, read.topic, read.partition, read.complete_s, (owner, read), offset)


def _skips(evidence: TransactionEvidence) -> Iterator[Anomaly]:
    """Check that readers of committed data skip no committed record."""
    for poll in evidence.polls:
        final = evidence.finals.get((poll.topic, poll.partition))
        if final is None or poll.next_offset <= poll.fetch_offset:
            continue
        given = {offset for offset, _ in poll.records}
        for offset, value in final.records:
            if poll.fetch_offset <= offset < poll.next_offset and offset not in given:
                message = (
                    f"{poll.client} went from {poll.fetch_offset} to {poll.next_offset} of "
                    f"{poll.topic}/{poll.partition} and was never given {value!r} at {offset}, which is committed"
                )
                pair = (poll, final)
                yield Anomaly("skipped-poll", message, poll.topic, poll.partition, poll.complete_s, pair, offset)
                break


def _offsets(evidence: TransactionEvidence) -> Iterator[Anomaly]:
    """Check that a group's offset comes from its newest committed transaction."""
    by_group: dict[str, list[Transaction]] = {}
    for each in evidence.transactions:
        if each.group:
            by_group.setdefault(each.group, []).append(each)
    for fetch in evidence.fetches:
        transactions = by_group.get(fetch.group)
        if transactions is None:
            continue
        if fetch.offset >= 0:
            owner = next((each for each in transactions if each.offset == fetch.offset), None)
            invoked_s = owner.commit_invoked_s if owner is not None and owner.outcome != "aborted" else None
            if owner is None or invoked_s is None or fetch.complete_s < invoked_s:
                message = f"group {fetch.group} has the offset {fetch.offset}, which no transaction had committed"
                involved = (fetch,) if owner is None else (owner, fetch)
                yield Anomaly("uncommitted-offset", message, fetch.topic, fetch.partition, fetch.complete_s, involved)
        for each in transactions:
            if each.outcome == "committed" and each.complete_s < fetch.invoke_s and each.offset > fetch.offset:
                message = (
                    f"group {fetch.group} has the offset {fetch.offset} after transaction {each.number} of "
                    f"{each.client} had committed {each.offset}"
                )
                pair = (each, fetch)
                yield Anomaly("torn-transaction", message, fetch.topic, fetch.partition, fetch.complete_s, pair)
                break
