"""What a group's state machine wants done: requests answered, and its state written."""

from dataclasses import dataclass

from braidlog.control.consumer_group import ConsumerChanges
from braidlog.control.group_errors import GroupError
from braidlog.control.group_member import SavedGroup
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
    """Write the group, after all earlier saves of it, then call `saved` with this number."""

    number: int
    group: SavedGroup


@dataclass(frozen=True, slots=True)
class SaveConsumerGroup:
    """As `SaveGroup`, for a group whose partitions the coordinator assigns."""

    number: int
    changes: ConsumerChanges


Answered = JoinAnswered | SyncAnswered | HeartbeatAnswered
Effect = Answered | SaveGroup | SaveConsumerGroup


def join_error(member_id: str, error: GroupError) -> JoinAnswer:
    return JoinAnswer(error, -1, None, None, "", member_id, [])


def sync_error(error: GroupError) -> SyncAnswer:
    return SyncAnswer(error, None, None, b"")
