"""Checks of a consumer's heartbeat that need no group."""

from kio.schema.errors import ErrorCode

from braidlog.control.groups.consumer.assignors import ASSIGNORS
from braidlog.control.groups.consumer.member import STATIC_LEAVE_EPOCH
from braidlog.control.groups.topic_pattern import InvalidPattern, TopicPattern
from braidlog.control.interface import ConsumerHeartbeat

LEAVE_EPOCH = -1


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


def check_heartbeat(request: ConsumerHeartbeat) -> None:
    """Raise `Refused` for an invalid heartbeat."""
    epoch = request.member_epoch
    problem = None
    if (request.member_id_required or epoch != 0) and not request.member_id:
        problem = "MemberId can't be empty."
    elif not request.group_id:
        problem = "GroupId can't be empty."
    elif request.instance_id == "":
        problem = "InstanceId can't be empty."
    elif request.rack_id == "":
        problem = "RackId can't be empty."
    elif epoch < STATIC_LEAVE_EPOCH:
        problem = "MemberEpoch is invalid."
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        problem = "InstanceId can't be null."
    elif epoch == 0 and request.rebalance_timeout_ms == -1:
        problem = "RebalanceTimeoutMs must be provided in first request."
    elif epoch == 0 and (request.owned is None or request.owned):
        problem = "TopicPartitions must be empty when (re-)joining."
    elif epoch == 0 and request.topic_names is None and request.topic_regex is None:
        problem = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    if problem is not None:
        raise Refused(ErrorCode.invalid_request, problem)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        raise Refused(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(ASSIGNORS)}.",
        )
    if request.topic_regex:
        try:
            TopicPattern(request.topic_regex)
        except InvalidPattern as error:
            raise Refused(
                ErrorCode.invalid_regular_expression,
                f"SubscribedTopicRegex `{request.topic_regex}` is not a valid regular expression: {error}.",
            ) from None
