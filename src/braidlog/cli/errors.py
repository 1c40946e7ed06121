"""Errors as people meet them: one line that says what happened, one that says what to do."""

import os
import traceback

from braidlog.cli.output import say


class CommandError(Exception):
    """What a command itself found wrong."""

    def __init__(self, message: str, *, help: str) -> None:
        super().__init__(message)
        self.help = help


def report(error: Exception) -> int:
    """Explain `error` on standard error; gives the exit code."""
    message, advice = explain(error)
    say(f"error: {message}")
    say(f"  help: {advice}")
    if os.environ.get("BRAIDLOG_TRACEBACK"):
        say("".join(traceback.format_exception(error)))
    return 1


def explain(error: Exception) -> tuple[str, str]:
    """What happened, and what to do."""
    from braidlog.runtime.errors import BraidError

    if isinstance(error, CommandError):
        return str(error), error.help
    if isinstance(error, BraidError):
        return str(error), error.help or f"What can be done: {error.remedy.value}."
    if type(error).__module__.startswith(("confluent_kafka", "cimpl")):
        return _explain_kafka(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror, "Check the path or address."
    return (
        f"{type(error).__name__}: {error}",
        "This should not happen. Run again with BRAIDLOG_TRACEBACK=1, and report what it prints.",
    )


def _explain_kafka(error: Exception) -> tuple[str, str]:
    from confluent_kafka import KafkaError, KafkaException

    cause = error.args[0] if isinstance(error, KafkaException) and error.args else None
    if not isinstance(cause, KafkaError):
        return str(error), "Check the options of the command."
    not_there = "Is an agent running there? Start one with `braid up`, or name another with --bootstrap."
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
        KafkaError.INVALID_PARTITIONS: "A topic has 1 to 100,000 partitions, and can only be given more of them.",
        KafkaError.INVALID_CONFIG: "`braid topic describe TOPIC --all` shows all configs and their values.",
    }.get(cause.code(), f"Kafka's error {cause.name()}; {'it may pass' if cause.retriable() else 'it will not pass'}.")
    return cause.str(), advice
