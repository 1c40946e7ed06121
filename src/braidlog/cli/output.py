"""Prints data on standard output, and everything else on standard error."""

import errno
import json
import os
import select
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any

from braidlog.cli.visible import visible_json, visible_text


class OutputFormat(StrEnum):
    """Text for people, JSON for programs."""

    TEXT = "text"
    JSON = "json"


def asked_format(arguments: Sequence[str]) -> OutputFormat:
    """Find the format that a command line asks for, even if the rest of it is wrong."""
    asked = [after for before, after in pairwise(arguments) if before == "--format"]
    asked += [each.removeprefix("--format=") for each in arguments if each.startswith("--format=")]
    return OutputFormat.JSON if OutputFormat.JSON in asked else OutputFormat.TEXT


def emit(text: str) -> None:
    """Print one line of data."""
    sys.stdout.write(text + "\n")


def emit_json(value: Any) -> None:
    emit(visible_json(json.dumps(value, default=str, ensure_ascii=False)))


def say(text: str) -> None:
    """Print one line about what the command does."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def check_reader() -> None:
    """Raise, as a write would, if the reader of standard output has gone.

    An idle consumer would not notice.
    """
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # errors are always reported
    except (OSError, ValueError, AttributeError):  # not a file, or a system without poll
        return
    if any(events & select.POLLERR for _, events in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def warn(message: str, advice: str, output: OutputFormat) -> None:
    """Warn of a likely mistake. The command goes on."""
    tell(output, {"warning": message, "help": advice})


def tell(output: OutputFormat, parts: Mapping[str, str]) -> None:
    """Print a message on standard error: a line per part, or one line of JSON."""
    if output is OutputFormat.JSON:
        say(json.dumps(parts, ensure_ascii=False))
        return
    for indent, (kind, text) in zip(("", *["  "] * len(parts)), parts.items(), strict=False):
        say(f"{indent}{kind}: {text}")


def counted(count: int, noun: str) -> str:
    """Format a number with its noun: `1 record`, `2 records`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(_cell, value)) or "-"
    return visible_text(str(value))


def format_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format aligned columns without lines, for `cut` and `awk`.

    Numbers are aligned to the right.
    """
    rows = [list(row) for row in rows]
    kinds = [{type(row[i]) for row in rows} - {type(None)} for i in range(len(columns))]
    numeric = [bool(kind) and kind <= {int, float} for kind in kinds]
    cells = [
        [column.upper().replace("_", "-") for column in columns],
        *([_cell(value) for value in row] for row in rows),
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    )


def emit_rows(output: OutputFormat, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table, or as a JSON array with all their fields."""
    if output is OutputFormat.JSON:
        emit_json(rows)
    else:
        emit(format_table(columns, [[row.get(column) for column in columns] for row in rows]))


def emit_fields(output: OutputFormat, fields: Mapping[str, Any]) -> None:
    """Print fields, a line for each, or as a JSON object."""
    if output is OutputFormat.JSON:
        emit_json(fields)
        return
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        emit(f"{name.replace('_', ' ').ljust(width)}  {_cell(value)}")
