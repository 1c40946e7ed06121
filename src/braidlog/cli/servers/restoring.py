"""`braid control restore`, `move`, `backup`, `verify`: the metadata made again.

None of them needs a control plane that runs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidlog.cli.options import Config, Format, Set, StoreUrl
from braidlog.cli.output import OutputFormat, emit, emit_fields, emit_json, emit_rows

if TYPE_CHECKING:
    from braidlog.runtime.settings import ControlPlaneSettings

COLUMNS = [
    "topic",
    "partition",
    "kept_end_offset",
    "gap_end_offset",
    "end_offset",
    "appended_records",
    "aborted_records",
]
UNREADABLE_SHOWN = 10

Target = Annotated[
    str | None, typer.Option("--metadata", metavar="URL", help="The new metadata: a new file, an empty database.")
]
SkipWait = Annotated[
    bool, typer.Option("--skip-wait", help="Do not wait for leases: no control plane of this store runs any more.")
]


def restore(
    store: StoreUrl = None,
    metadata: Target = None,
    backup: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A backup, instead of what the store has.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")] = False,
    skip_wait: SkipWait = False,
    config: Config = None,
    set: Set = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Make lost metadata again from the store alone.

    No acknowledged record is missing afterwards. Records that are newer than the copy of the metadata are appended
    again, with new offsets and a new leader epoch; the report lists them by partition.

    \b
    Example: braid control restore --store s3://bucket --metadata sqlite:///new.db
    """
    from braidlog.node.restoring import run_restore

    settings = _settings(config, set, store, metadata)
    _show(run_restore(settings, backup=backup, is_dry_run=dry_run, waits=not skip_wait), format)


def move(
    moved_from: Annotated[str, typer.Option("--from", metavar="URL", help="The metadata that is in use now.")],
    store: StoreUrl = None,
    metadata: Target = None,
    config: Config = None,
    set: Set = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Move metadata from one kind to another.

    All offsets stay as they are. Stop the control plane first. Afterwards none can start with the old metadata.

    \b
    Example: braid control move --from sqlite:///old.db --metadata bucket://
    """
    from braidlog.node.restoring import run_move

    _show(run_move(_settings(config, set, store, metadata), moved_from), format)


def backup(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The new file to write.")],
    store: StoreUrl = None,
    config: Config = None,
    set: Set = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Write the newest metadata that the store has to a file.

    \b
    Example: braid control backup --store s3://bucket/prefix --out backup.db
    """
    from braidlog.node.restoring import run_backup

    emit_fields(format, run_backup(_settings(config, set, store, None), out))


def verify(store: StoreUrl = None, config: Config = None, set: Set = None, format: Format = OutputFormat.TEXT) -> None:
    """Check that the store can give the metadata back.

    It reads the copy, and whether every object is there that it refers to.

    \b
    Example: braid control verify --store s3://bucket/prefix
    """
    from braidlog.node.restoring import run_verify

    report = run_verify(_settings(config, set, store, None))
    is_damaged = bool(report["damage"] or report["unreadable"])
    _show(report, format)
    if is_damaged:
        raise typer.Exit(1)


def _settings(
    config: Path | None, set: list[str] | None, store: str | None, metadata: str | None
) -> "ControlPlaneSettings":
    from braidlog.cli.settings import read_settings

    return read_settings(config, set, {"store_url": store, "metadata_url": metadata}).control


def _show(found: dict[str, Any], format: OutputFormat) -> None:
    if format is OutputFormat.JSON:
        emit_json(found)
        return
    partitions, older, again = found.pop("partitions"), found.pop("may_be_older"), found.pop("may_reappear")
    found["unreadable"] = found["unreadable"][:UNREADABLE_SHOWN] or None
    found["damage"] = found["damage"] or None
    emit_fields(format, found)
    for text in older:
        emit(f"may be older: {text}")
    for text in again:
        emit(f"may reappear: {text}")
    if partitions:
        emit("\nrecords with new offsets")
        emit_rows(format, COLUMNS, partitions)
