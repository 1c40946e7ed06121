"""A member of a classic consumer group: its requests and its saved form."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import msgspec

from braidlog.control.interface import JoinGroup, JoinProtocol


class SavedMember(msgspec.Struct, frozen=True, array_like=True):
    """Persisted, keep stable: fields are only ever added at the end."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[JoinProtocol]
    assignment: bytes


class SavedGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group between two rebalances.

    Persisted, keep stable: fields are only ever added at the end.
    """

    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str | None
    members: list[SavedMember]


@dataclass(slots=True)
class Member:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[JoinProtocol, ...]
    """In the member's order of preference, each name once."""
    assignment: bytes = b""
    is_new: bool = False
    """The member was in no generation yet."""
    knows_id: bool = True
    """False until an answer has told it its id. If its connection closes before, nobody will ever use that id."""
    join_ticket: int | None = None
    sync_ticket: int | None = None
    session_deadline_s: float | None = None
    """None: the session ended while the member was waiting for the coordinator, so it is not taken for dead."""

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def metadata_bytes(self) -> int:
        return protocols_bytes(self.protocols)

    def metadata(self, protocol_name: str | None) -> bytes:
        return next((protocol.metadata for protocol in self.protocols if protocol.name == protocol_name), b"")

    def vote(self, candidates: Collection[str]) -> str:
        return next(protocol.name for protocol in self.protocols if protocol.name in candidates)

    def renamed(self, member_id: str) -> "Member":
        """Return the same static member under a new id, without waiting requests."""
        return replace(self, member_id=member_id, is_new=False, knows_id=False, join_ticket=None, sync_ticket=None)

    def saved(self, assignment: bytes) -> SavedMember:
        return SavedMember(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            list(self.protocols),
            assignment,
        )


def protocols_bytes(protocols: Collection[JoinProtocol]) -> int:
    return sum(len(protocol.name) + len(protocol.metadata) for protocol in protocols)


def chosen_metadata(protocols: Sequence[JoinProtocol], protocol_name: str | None) -> bytes:
    """Return the metadata of the named protocol, or else of the first.

    In a `consumer` group all protocols have one subscription.
    """
    return next((each.metadata for each in protocols if each.name == protocol_name), protocols[0].metadata)


def unique_protocols(request: JoinGroup) -> tuple[JoinProtocol, ...]:
    """Return the offered protocols. The first of those with the same name counts."""
    by_name: dict[str, JoinProtocol] = {}
    for protocol in request.protocols:
        by_name.setdefault(protocol.name, protocol)
    return tuple(by_name.values())


def rebalance_timeout_ms(request: JoinGroup) -> int:
    """Return the rebalance timeout.

    JoinGroup 0 has no such field, and uses the session timeout for both.
    """
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms


def member_from_request(request: JoinGroup, member_id: str) -> Member:
    return Member(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms(request),
        protocols=unique_protocols(request),
        is_new=True,
        knows_id=bool(request.member_id),
    )


def member_from_saved(saved: SavedMember) -> Member:
    return Member(
        member_id=saved.member_id,
        group_instance_id=saved.group_instance_id,
        client_id=saved.client_id,
        client_host=saved.client_host,
        session_timeout_ms=saved.session_timeout_ms,
        rebalance_timeout_ms=saved.rebalance_timeout_ms,
        protocols=tuple(saved.protocols),
        assignment=saved.assignment,
    )
