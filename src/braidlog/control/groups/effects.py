"""The effects of a group's state machine: answers, and writes of its state."""

from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from braidlog.control.groups.classic.member import SavedGroup
from braidlog.control.groups.consumer.group import ConsumerChanges
from braidlog.control.interface import ConsumerHeartbeatAnswer, JoinAnswer, SyncAnswer


@dataclass(frozen=True, slots=True)
class JoinAnswered:
    ticket: int
    answer: JoinAnswer


@dataclass(frozen=True, slots=True)
class SyncAnswered:
    ticket: int
    answer: SyncAnswer


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    ticket: int
    answer: ConsumerHeartbeatAnswer


@dataclass(frozen=True, slots=True)
class SaveGroup:
    """Write the group after all earlier saves, then call `saved` with this number."""

    number: int
    group: SavedGroup


@dataclass(frozen=True, slots=True)
class SaveConsumerGroup:
    """Like `SaveGroup`, for a group whose partitions the coordinator assigns."""

    number: int
    changes: ConsumerChanges


Answered = JoinAnswered | SyncAnswered | HeartbeatAnswered
Effect = Answered | SaveGroup | SaveConsumerGroup


def join_error(member_id: str, error: ErrorCode) -> JoinAnswer:
    return JoinAnswer(error, -1, None, None, "", member_id, [])


def sync_error(error: ErrorCode) -> SyncAnswer:
    return SyncAnswer(error, None, None, b"")
