"""Shows errors to people: one line says what happened, and one says what to do."""

import os
import signal
import traceback
from collections.abc import Mapping
from typing import Any

from braidlog.cli.output import OutputFormat, emit_json, say, tell
from braidlog.clients.errors import FAILED, WRONG_USAGE, CommandError, is_open
from braidlog.clients.errors import explain as explain_failure

TERMINATED = 128 + signal.SIGTERM
READER_GONE = 128 + signal.SIGPIPE
"""The exit code that a shell shows for a program whose reader has gone."""


def report(error: Exception, output: OutputFormat = OutputFormat.TEXT) -> int:
    """Explain `error` on standard error, and give the exit code."""
    if _is_help(error):
        error.show()  # type: ignore[attr-defined]  # a group without a command: its help is the answer
        return WRONG_USAGE
    message, advice = explain(error)
    tell(output, {"error": message, "help": advice})
    if os.environ.get("BRAIDLOG_TRACEBACK"):
        say("".join(traceback.format_exception(error)))
    code = getattr(error, "exit_code", FAILED)
    return code if isinstance(code, int) else FAILED


def _is_help(error: Exception) -> bool:
    return type(error).__name__ == "NoArgsIsHelpError"


def _is_usage(error: Exception) -> bool:
    """Tell whether the command line was wrong.

    It checks attributes: some versions of typer bring a click of their own.
    """
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def naming(name: str, error: Exception) -> Exception:
    """Give `error` with `name` in its message.

    Kafka's messages often do not say which of many things failed.
    """
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
    """Report the outcome for each of many things, and raise if one of them failed.

    Things that are neither done nor failed are fine: `otherwise` says why.
    """
    errors = {name: naming(name, error) for name, error in failures.items()}
    if output is OutputFormat.JSON:
        emit_json(
            [
                {noun: name, verb: None if is_open(failures[name]) else False, "error": explain(errors[name])[0]}
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
        report(error, output)
    if told:
        raise told[-1]  # reported like the others where the command ends


def explain(error: Exception) -> tuple[str, str]:
    """Say what happened, and what to do."""
    return _explain_usage(error) if _is_usage(error) else explain_failure(error)


def _explain_usage(error: Any) -> tuple[str, str]:
    message = error.format_message().rstrip(".").replace("\n", " ")
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "braid"
    return f"{message[:1].lower()}{message[1:]}", f"`{where} --help` shows what it takes."
