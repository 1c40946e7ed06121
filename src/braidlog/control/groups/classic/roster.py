"""The members of a classic consumer group: protocols, leader, waiting joins."""

from collections import Counter
from collections.abc import Iterable, Iterator

from kio.schema.errors import ErrorCode

from braidlog.control.groups.classic.member import Member
from braidlog.control.groups.subscription import subscribed_topics
from braidlog.control.interface import JoinProtocol


class GroupRoster:
    """Keeps the members in the order of joining.

    Callers make sure that all members share a protocol.
    """

    def __init__(self) -> None:
        self.leader: str | None = None
        self.joined_count = 0
        """How many members have a waiting join."""
        self.metadata_bytes = 0
        self._members: dict[str, Member] = {}
        self._static_ids: dict[str, str] = {}
        """Member id by group instance id."""
        self._protocol_counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def get_static(self, group_instance_id: str | None) -> Member | None:
        member_id = None if group_instance_id is None else self._static_ids.get(group_instance_id)
        return None if member_id is None else self._members[member_id]

    def check_identity(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        if group_instance_id is not None:
            current_id = self._static_ids.get(group_instance_id)
            if current_id is None:
                return ErrorCode.unknown_member_id
            if current_id != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self._members else ErrorCode.unknown_member_id

    def add(self, member: Member) -> None:
        self._members[member.member_id] = member
        self._count(member)
        if member.group_instance_id is not None:
            self._static_ids[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        del self._members[member.member_id]
        self.set_join_ticket(member, None)
        self._discount(member)
        if member.group_instance_id is not None:
            del self._static_ids[member.group_instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self._members), None)

    def rename(self, old: Member, member_id: str) -> Member:
        """Give a static member a new id in the same place.

        No request may wait under the old one.
        """
        member = old.renamed(member_id)
        renamed = (member if each is old else each for each in self._members.values())
        self._members = {each.member_id: each for each in renamed}
        if self.leader == old.member_id:
            self.leader = member_id
        if old.group_instance_id is not None:
            self._static_ids[old.group_instance_id] = member_id
        return member

    def set_protocols(self, member: Member, protocols: tuple[JoinProtocol, ...]) -> None:
        self._discount(member)
        member.protocols = protocols
        self._count(member)

    def set_join_ticket(self, member: Member, ticket: int | None) -> None:
        self.joined_count += (ticket is not None) - (member.join_ticket is not None)
        member.join_ticket = ticket

    def shares_any(self, protocols: Iterable[JoinProtocol]) -> bool:
        return any(self._protocol_counts[protocol.name] == len(self._members) for protocol in protocols)

    def select_protocol(self) -> str | None:
        """Return the protocol that most members prefer, among those that all know.

        On a tie it is the first to reach that number.
        """
        candidates = {name for name, count in self._protocol_counts.items() if count == len(self._members)}
        votes = Counter(member.vote(candidates) for member in self)
        return max(votes, key=lambda name: votes[name], default=None)

    def elect_leader(self) -> bool:
        """Elect a leader among the members that wait to join; the current one if it does.

        Returns whether there is one.
        """
        leader = self._members.get(self.leader or "")
        if leader is None or leader.join_ticket is None:
            leader = next((member for member in self if member.join_ticket is not None), None)
        if leader is not None:
            self.leader = leader.member_id
        return leader is not None

    def subscribed_topics(self, protocol_name: str | None) -> frozenset[str] | None:
        """Return the topics of all members of a `consumer` group.

        Returns None if one member's metadata is something else.
        """
        topics: set[str] = set()
        for member in self:
            found = subscribed_topics(member.metadata(protocol_name))
            if found is None:
                return None
            topics |= found
        return frozenset(topics)

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def clear(self) -> None:
        for member in list(self):
            self.remove(member)

    def _count(self, member: Member) -> None:
        self._protocol_counts.update(protocol.name for protocol in member.protocols)
        self.metadata_bytes += member.metadata_bytes

    def _discount(self, member: Member) -> None:
        for protocol in member.protocols:
            self._protocol_counts[protocol.name] -= 1
            if not self._protocol_counts[protocol.name]:
                del self._protocol_counts[protocol.name]
        self.metadata_bytes -= member.metadata_bytes
