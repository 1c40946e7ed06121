"""Errors as people meet them: one line that says what happened, one that says what to do."""

import os
import traceback
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from braidlog.cli.output import OutputFormat, emit_json, say
from braidlog.runtime.errors import BraidError, Remedy

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


class CommandError(Exception):
    """What a command itself found wrong."""

    def __init__(self, message: str, *, help: str) -> None:
        super().__init__(message)
        self.help = help


class NoAnswer(CommandError):
    """Nobody said in time whether it happened."""


def report(error: Exception) -> int:
    """Explain `error` on standard error; gives the exit code."""
    message, advice = explain(error)
    say(f"error: {message}")
    say(f"  help: {advice}")
    if os.environ.get("BRAIDLOG_TRACEBACK"):
        say("".join(traceback.format_exception(error)))
    return 1


def failures_of(futures: Mapping[str, "Future[Any]"]) -> dict[str, Exception]:
    """What went wrong with which of the things that were asked for at once."""
    from braidlog.cli.kafka import CALL_TIMEOUT_S

    # All together: where nobody answers, one after the other would take as many times as long.
    _, silent = wait(futures.values(), timeout=CALL_TIMEOUT_S)
    failures: dict[str, Exception] = {}
    for name, future in futures.items():
        if future in silent:
            failures[name] = NoAnswer(
                f"no answer within {CALL_TIMEOUT_S:.0f} s, so nobody knows what became of {name!r}",
                help="Is the control plane running? Look at the agent's log.",
            )
        elif isinstance(error := future.exception(), Exception):
            failures[name] = error
    return failures


def naming(name: str, error: Exception) -> Exception:
    """`error` in words that name what it is about: what Kafka says of one of many things often does not."""
    message, advice = explain(error)
    if repr(name) in message:
        return error
    named = CommandError(f"{name!r}: {message}", help=advice)
    named.__cause__ = error
    return named


def tell_outcomes(
    output: OutputFormat,
    noun: str,
    verb: str,
    done: Mapping[str, bool],
    failures: Mapping[str, Exception],
    otherwise: str = "",
) -> None:
    """Tell what became of each of many things, and end the command if anything went wrong with one.

    What is neither done nor a failure is fine: `otherwise` says why.
    """
    errors = {name: naming(name, error) for name, error in failures.items()}
    if output is OutputFormat.JSON:
        emit_json(
            [
                {noun: name, verb: None if _is_open(failures[name]) else False, "error": explain(errors[name])[0]}
                if name in errors
                else {noun: name, verb: is_done}
                for name, is_done in done.items()
            ]
        )
    else:
        for name, is_done in done.items():
            if name not in errors:
                say(f"{name}: {verb if is_done else otherwise}")
    told = list(errors.values())
    for error in told[:-1]:
        report(error)
    if told:
        raise told[-1]  # where the command ends it is told like the others


def explain(error: Exception) -> tuple[str, str]:
    """What happened, and what to do."""
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
        "This should not happen. Run again with BRAIDLOG_TRACEBACK=1, and report what it prints.",
    )


_ADVICE = {
    Remedy.RETRY: "It may pass: try again.",
    Remedy.REFRESH: "Something else has changed it meanwhile: look again, then decide whether to repeat the command.",
    Remedy.FIX_INPUT: "It will stay like this: change the arguments, options or settings that the command was given.",
    Remedy.CHECK_OUTCOME: "Nobody knows whether it happened: look before you repeat the command.",
    Remedy.GIVE_UP: "Trying again will not help. The logs of the agent and of the control plane may tell more.",
}
"""For errors that have no help of their own."""


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
        KafkaError.INVALID_PARTITIONS: "A topic has 1 to 100,000 partitions, and can only be given more of them.",
        KafkaError.INVALID_CONFIG: "`braid topic describe TOPIC --all` shows all configs and their values.",
        KafkaError.NOT_CONTROLLER: away,
        KafkaError.COORDINATOR_NOT_AVAILABLE: away,
    }.get(cause.code())
    if advice is None:
        advice = f"Kafka's error {cause.name()}; {'it may pass' if _is_retriable(cause) else 'it will not pass'}."
    return cause.str(), advice


def kafka_code(error: Exception) -> int | None:
    """The code of what Kafka or its client said; None where it was neither."""
    from confluent_kafka import KafkaException

    return int(error.args[0].code()) if isinstance(error, KafkaException) else None


def _is_open(error: Exception) -> bool:
    """Whether it may have happened all the same."""
    from confluent_kafka import KafkaError

    open_codes = {KafkaError.REQUEST_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT}
    return isinstance(error, NoAnswer) or kafka_code(error) in open_codes


def _is_retriable(cause: "KafkaError") -> bool:
    """By the code, because the client calls no error retriable that a broker gave to an admin call."""
    from kio.schema.errors import ErrorCode

    try:
        return cause.retriable() or ErrorCode(cause.code()).retriable
    except ValueError:  # one of the client's own
        return False
