"""One step of a member towards its part of the newest assignment.

A member gives partitions up first, and takes others afterwards.

A partition is assigned to a member only when nobody else has it. Its owner keeps it until the owner's own heartbeat no
longer lists it. So no partition is ever read by two members, however late either of them hears of a change.
"""

from collections.abc import Callable
from dataclasses import dataclass

from braidlog.control.groups.consumer.assignors import Partition
from braidlog.control.groups.consumer.member import ConsumerMember, MemberState, Partitions


@dataclass(frozen=True, slots=True)
class Step:
    """The member's state after the step."""

    member_epoch: int
    state: MemberState
    assigned: Partitions
    revoking: Partitions


def next_step(
    member: ConsumerMember,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[Partition], bool],
    *,
    is_joining: bool,
) -> Step:
    """Return the next step of a member.

    `owned` is what the member reports to own; None: it did not report. `is_free` tells whether nobody but this member
    has a partition. A member that joins begins anew: what it does not list, it will not read.
    """
    if member.state is MemberState.STABLE and member.member_epoch == target_epoch:
        return _unchanged(member)
    if member.state is MemberState.REVOKING:
        if owned is None or owned & member.revoking:
            return _unchanged(member)
        return _towards_target(member, member.member_epoch + 1, target_epoch, owned, is_free, is_joining)
    return _towards_target(member, member.member_epoch, target_epoch, owned, is_free, is_joining)


def _unchanged(member: ConsumerMember) -> Step:
    return Step(member.member_epoch, member.state, member.assigned, member.revoking)


def _towards_target(
    member: ConsumerMember,
    member_epoch: int,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[Partition], bool],
    is_joining: bool,
) -> Step:
    kept = member.assigned & member.target
    to_revoke = member.assigned - kept
    if to_revoke and (not is_joining or owned is None or owned & to_revoke):
        # It keeps its epoch until it has given the partitions up. That it does not list one is not enough: it may have
        # been assigned it a moment ago, and be about to read it. It must first be told not to.
        return Step(member_epoch, MemberState.REVOKING, kept, to_revoke)
    missing = member.target - kept
    available = frozenset(partition for partition in missing if is_free(partition))
    state = MemberState.STABLE if available == missing else MemberState.WAITING
    return Step(target_epoch, state, kept | available, frozenset())
