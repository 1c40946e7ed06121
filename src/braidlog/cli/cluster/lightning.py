"""`braid lightning`: show what waits in journals to be sequenced."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidlog.cli.options import AnyAgent, Control, Format
from braidlog.cli.output import OutputFormat, emit, emit_fields, emit_json, emit_rows
from braidlog.clients.control_client import CALL_TIMEOUT_S, find_control, with_control

if TYPE_CHECKING:
    from braidlog.control.interface import ControlPlane, JournalDescription, SequenceDescription

app = typer.Typer(help="Topics that acknowledge before they sequence.", no_args_is_help=True)

COLUMNS = ["incarnation", "sequence", "state", "slots", "sequenced", "watermark", "opened", "agent"]


@app.callback()
def lightning() -> None:
    pass


@app.command()
def status(
    bootstrap: AnyAgent = None,
    control: Control = None,
    sequences_max: Annotated[
        int, typer.Option("--sequences", metavar="N", min=0, max=10_000, help="How many journal sequences to list.")
    ] = 20,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Show which journaled files are sequenced, and which wait.

    \b
    Example: braid lightning status --format json
    """
    from braidlog.control.interface import DescribeJournals
    from braidlog.runtime.clock import SystemClock

    async def ask(plane: "ControlPlane") -> "JournalDescription":
        return await plane.describe_journals(DescribeJournals(sequences_max), timeout_s=CALL_TIMEOUT_S)

    described = with_control(find_control(control, bootstrap), ask)
    figures = _figures(described, SystemClock().wall_ms())
    sequences = [_row(each) for each in described.sequences]
    if format is OutputFormat.JSON:
        emit_json({**figures, "sequences": sequences})
        return
    emit_fields(format, figures)
    if sequences:
        emit("")
        emit_rows(format, COLUMNS, sequences)


def _figures(described: "JournalDescription", now_ms: int) -> dict[str, Any]:
    counts = described.statistics
    return {
        "fast_files": counts.fast_files,
        "slow_files": counts.slow_files,
        "unreplayed_files": counts.unreplayed_files,
        "open_sequences": counts.open_sequences,
        "complete_sequences": counts.complete_sequences,
        "closed_sequences": counts.closed_sequences,
        "held_batches": counts.held_batches,
        "oldest_held": _time(described.oldest_held_ms),
        "oldest_held_s": max(0, now_ms - held_ms) // 1000 if (held_ms := described.oldest_held_ms) >= 0 else None,
        "held_waits_for": _waits_for(described),
        "held_until": _time(described.held_until_ms),
        "gaps_given_up": counts.gaps_given_up,
        "late_batches": counts.late_batches,
        "older_epoch_batches": counts.older_epoch_batches,
        "duplicate_batches": counts.duplicate_batches,
        "dropped_batches": counts.dropped_batches,
        "replayed_until": _time(counts.replayed_ms or -1),
    }


def _waits_for(described: "JournalDescription") -> str | None:
    from braidlog.control.interface import WAITS_FOR_JOURNALS

    if described.held_waits_for == WAITS_FOR_JOURNALS:
        return f"{described.untried_sequences or 'unknown'} sequences to be looked through"
    return "a batch before it" if described.held_waits_for else None


def _row(sequence: "SequenceDescription") -> dict[str, Any]:
    return {
        "incarnation": sequence.incarnation,
        "sequence": sequence.number,
        "state": sequence.state,
        "slots": sequence.end_slot if sequence.end_slot >= 0 else None,
        "sequenced": sequence.sequenced_count,
        "watermark": sequence.watermark,
        "opened": _time(sequence.opened_ms),
        "agent": "there" if sequence.is_live else "gone",
    }


def _time(at_ms: int) -> str | None:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds") if at_ms >= 0 else None
