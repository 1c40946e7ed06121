"""Explains errors: what happened, and what to do about it."""

from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from braidlog.runtime.errors import BraidError, Remedy

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

FAILED = 1
WRONG_USAGE = 2


class CommandError(Exception):
    """An error that a client of the cluster has found itself."""

    exit_code = FAILED

    def __init__(self, message: str, *, help: str) -> None:
        super().__init__(message)
        self.help = help


class WrongUsage(CommandError):
    """An argument, an option or a setting is wrong."""

    exit_code = WRONG_USAGE


class NoAnswer(CommandError):
    """No answer came in time, so the outcome is unknown."""


def failures_of(futures: Mapping[str, "Future[Any]"]) -> dict[str, Exception]:
    """Wait for all futures together, and collect the errors of those that failed."""
    from braidlog.clients.kafka_client import CALL_TIMEOUT_S

    # One after the other would wait a full timeout for each if nothing answers.
    _, silent = wait(futures.values(), timeout=CALL_TIMEOUT_S)
    failures: dict[str, Exception] = {}
    for name, future in futures.items():
        if future in silent:
            failures[name] = NoAnswer(
                f"no answer within {CALL_TIMEOUT_S:.0f} s, so the outcome for {name!r} is unknown",
                help="Is the control plane running? Look at the agent's log.",
            )
        elif isinstance(error := future.exception(), Exception):
            failures[name] = error
    return failures


def explain(error: Exception) -> tuple[str, str]:
    """Say what happened, and what to do."""
    if isinstance(error, CommandError):
        return str(error), error.help
    if isinstance(error, BraidError):
        return str(error), error.help or _ADVICE[error.remedy]
    if type(error).__module__.startswith(("confluent_kafka", "cimpl")):
        return _explain_kafka(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror, "Check the path or address."
    return (
        f"{type(error).__name__}: {error}",
        "This should not happen. Run it again with BRAIDLOG_TRACEBACK=1, and report what it prints.",
    )


_ADVICE = {
    Remedy.RETRY: "It may pass: try again.",
    Remedy.REFRESH: "It has changed meanwhile: look again, then decide whether to repeat the command.",
    Remedy.FIX_INPUT: "Trying again will not help: change the arguments, options or settings.",
    Remedy.CHECK_OUTCOME: "It may have happened or not: look before you repeat the command.",
    Remedy.GIVE_UP: "Trying again will not help. The logs of the agent and of the control plane may say more.",
}
"""Advice for errors that have no help of their own."""


def _explain_kafka(error: Exception) -> tuple[str, str]:
    from confluent_kafka import KafkaError, KafkaException

    cause = error.args[0] if isinstance(error, KafkaException) and error.args else None
    if not isinstance(cause, KafkaError):
        return str(error), "Check the options of the command."
    not_there = "Is an agent running there? Start one with `braid up`, or name another with --bootstrap."
    away = "It may pass: try again. Is the control plane running? Look at the agent's log."
    advice = {
        KafkaError._TRANSPORT: not_there,
        KafkaError._TIMED_OUT: not_there,
        KafkaError._ALL_BROKERS_DOWN: not_there,
        KafkaError._RESOLVE: "The host name is not known. Name another with --bootstrap.",
        KafkaError.UNKNOWN_TOPIC_OR_PART: "`braid topic list` shows the topics; `braid topic create` makes one.",
        KafkaError._UNKNOWN_TOPIC: "`braid topic list` shows the topics; `braid topic create` makes one.",
        KafkaError._UNKNOWN_PARTITION: "`braid topic describe TOPIC` shows its partitions.",
        KafkaError.TOPIC_ALREADY_EXISTS: "Use --if-not-exists where that is fine, or `braid topic alter` to change it.",
        KafkaError.GROUP_ID_NOT_FOUND: "`braid group list` shows the groups.",
        KafkaError.NON_EMPTY_GROUP: "Stop the group's consumers first; `braid group describe` shows them.",
        KafkaError.UNKNOWN_MEMBER_ID: "Stop the group's consumers first; `braid group describe` shows them.",
        KafkaError.TOPIC_EXCEPTION: "Choose another name: up to 249 letters, digits, dots, dashes and underscores.",
        KafkaError.MSG_SIZE_TOO_LARGE: "Raise the topic's limit: `braid topic alter TOPIC --set max.message.bytes=N`.",
        KafkaError.INVALID_PARTITIONS: "A topic has 1 to 100,000 partitions, and can only be given more of them.",
        KafkaError.INVALID_CONFIG: "`braid topic describe TOPIC --all` shows all configs and their values.",
        KafkaError.NOT_CONTROLLER: away,
        KafkaError.COORDINATOR_NOT_AVAILABLE: away,
    }.get(cause.code())
    if advice is None:
        advice = f"Kafka's error {cause.name()}; {'it may pass' if _is_retriable(cause) else 'it will not pass'}."
    return cause.str(), advice


def kafka_code(error: Exception) -> int | None:
    """Give the error code of Kafka or of its client; None for other errors."""
    from confluent_kafka import KafkaException

    return int(error.args[0].code()) if isinstance(error, KafkaException) else None


def is_open(error: Exception) -> bool:
    """Tell whether the request may have succeeded all the same."""
    from confluent_kafka import KafkaError

    open_codes = {KafkaError.REQUEST_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT}
    return isinstance(error, NoAnswer) or kafka_code(error) in open_codes


def _is_retriable(cause: "KafkaError") -> bool:
    """Tell whether a retry may help.

    It depends on the code: the client never calls errors of admin calls retriable.
    """
    from kio.schema.errors import ErrorCode

    try:
        return cause.retriable() or ErrorCode(cause.code()).retriable
    except ValueError:  # one of the client's own
        return False
