"""`braid lightning`: the journals of what was acknowledged before it was sequenced."""

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidlog.cli.options import Format
from braidlog.cli.output import OutputFormat, emit, emit_fields, emit_json, emit_rows

if TYPE_CHECKING:
    from braidlog.control.interface import JournalDescription, SequenceDescription

app = typer.Typer(help="Topics that acknowledge before they sequence.", no_args_is_help=True)

DEFAULT_CONTROL = "127.0.0.1:9190"
CALL_TIMEOUT_S = 15.0
COLUMNS = ["incarnation", "sequence", "state", "slots", "sequenced", "watermark", "opened", "agent"]


@app.callback()
def lightning() -> None:
    pass


@app.command()
def status(
    control: Annotated[
        str,
        typer.Option(
            "--control", envvar="BRAIDLOG_CONTROL", metavar="HOST:PORT", help="The control plane of the cluster."
        ),
    ] = DEFAULT_CONTROL,
    sequences_max: Annotated[
        int, typer.Option("--sequences", min=0, max=10_000, help="How many sequences to list one by one.")
    ] = 20,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Show how journaled files found their way into the log, what is still to be replayed, and what waits for what.

    Example: braid lightning status --format json
    """
    described = asyncio.run(_describe(control, sequences_max))
    figures = _figures(described)
    sequences = [_row(each) for each in described.sequences]
    if format is OutputFormat.JSON:
        emit_json({**figures, "sequences": sequences})
        return
    emit_fields(format, figures)
    if sequences:
        emit("")
        emit_rows(format, COLUMNS, sequences)


async def _describe(address: str, sequences_max: int) -> "JournalDescription":
    from braidlog.control.interface import DescribeJournals
    from braidlog.control.remote import connect_control
    from braidlog.runtime.clock import SystemClock
    from braidlog.runtime.entropy import SystemEntropy

    plane = connect_control(address, clock=SystemClock(), entropy=SystemEntropy())
    try:
        return await plane.describe_journals(DescribeJournals(sequences_max), timeout_s=CALL_TIMEOUT_S)
    finally:
        await plane.close()


def _figures(described: "JournalDescription") -> dict[str, Any]:
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
        "gaps_given_up": counts.gaps_given_up,
        "late_batches": counts.late_batches,
        "older_epoch_batches": counts.older_epoch_batches,
        "duplicate_batches": counts.duplicate_batches,
        "dropped_batches": counts.dropped_batches,
        "replayed_until": _time(counts.replayed_ms or -1),
    }


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
