"""One step of a member towards its part of the newest assignment: give up first, take afterwards.

A partition is handed to a member only when nobody else has it, and whoever has it keeps it until its own heartbeat no
longer lists it. So no partition is ever read by two members, however late either of them hears of anything.
"""

from collections.abc import Callable
from dataclasses import dataclass

from braidlog.control.consumer_assignors import Partition
from braidlog.control.consumer_member import ConsumerMember, MemberState, Partitions


@dataclass(frozen=True, slots=True)
class Step:
    """What the member becomes."""

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
    """`owned` is what the member says that it still has; None where it did not say. `is_free` tells whether nobody but
    this member has a partition. A member that joins begins anew: what it does not list it will not take up either."""
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
        # It stays at its epoch until it has let go. That it does not list a partition is not enough: it may have been
        # told of it a moment ago, and be about to take it. First it has to hear that it no longer shall.
        return Step(member_epoch, MemberState.REVOKING, kept, to_revoke)
    missing = member.target - kept
    available = frozenset(partition for partition in missing if is_free(partition))
    state = MemberState.STABLE if available == missing else MemberState.WAITING
    return Step(target_epoch, state, kept | available, frozenset())
