"""What the commands print: data on standard output, everything else on standard error."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any


class OutputFormat(StrEnum):
    """Text for people, JSON for programs."""

    TEXT = "text"
    JSON = "json"


def emit(text: str) -> None:
    """One line of data."""
    sys.stdout.write(text + "\n")


def emit_json(value: Any) -> None:
    emit(json.dumps(value, default=str, ensure_ascii=False))


def say(text: str) -> None:
    """One line about what is going on."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def counted(count: int, noun: str) -> str:
    """A number and its noun: `1 record`, `2 records`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(_cell, value)) or "-"
    return str(value)


def format_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Aligned columns without lines, so that `cut` and `awk` can read them; numbers stand to the right."""
    rows = [list(row) for row in rows]
    numeric = [bool(rows) and all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))]
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
    """A list of things: a table, or a JSON array with all their fields."""
    if output is OutputFormat.JSON:
        emit_json(rows)
    else:
        emit(format_table(columns, [[row.get(column) for column in columns] for row in rows]))


def emit_fields(output: OutputFormat, fields: Mapping[str, Any]) -> None:
    """One thing: its fields, a line each, or a JSON object."""
    if output is OutputFormat.JSON:
        emit_json(fields)
        return
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        emit(f"{name.replace('_', ' ').ljust(width)}  {_cell(value)}")
