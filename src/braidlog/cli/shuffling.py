"""`braid shuffle`: what a shuffle through the store needs beside its Spark job."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braidlog.cli.options import Format, ReadyFile
from braidlog.cli.output import OutputFormat, emit_fields, emit_json, say

if TYPE_CHECKING:
    from braidlog.spark.shuffle.expiry import ExpiryReport, StatesReport

app = typer.Typer(help="Caches, expiry and lifecycle rules of shuffles.", no_args_is_help=True)

Store = Annotated[
    str, typer.Option("--store", metavar="URL", help="Where the batches are: the URL of the job's shuffle.")
]
Retention = Annotated[str, typer.Option("--retention", help="How long batches stay that nobody says to need.")]


@app.command()
def cache(
    store: Store,
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where tasks reach it.")] = (
        "127.0.0.1:9600"
    ),
    memory: Annotated[str, typer.Option("--memory", help="What is kept in memory.")] = "1GiB",
    disk: Annotated[
        Path | None, typer.Option("--disk", metavar="FOLDER", help="What falls out of it goes here.")
    ] = None,
    disk_size: Annotated[str, typer.Option("--disk-size", help="At most so much of it.")] = "20GiB",
    on_write: Annotated[bool, typer.Option(help="Keep what is written, for readers of the same zone.")] = True,
    whole: Annotated[bool, typer.Option(help="Take in whole batches, and not only the ranges asked for.")] = True,
    ready_file: ReadyFile = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Run a member of a zone's cache. Tasks of the zone put and get batches through its members, one per node.

    Example: braid shuffle cache --store s3://bucket/prefix --listen 10.0.0.5:9600 --memory 4GiB
    """
    asyncio.run(_serve(store, listen, _bytes(memory), disk, _bytes(disk_size), on_write, whole, ready_file, format))


async def _serve(
    store_url: str,
    listen: str,
    memory_bytes: int,
    disk: Path | None,
    disk_bytes: int,
    on_write: bool,
    whole: bool,
    ready_file: Path | None,
    output: OutputFormat,
) -> None:
    from braidlog.cache.disk import DiskLayer
    from braidlog.cache.layers import Layer, MemoryLayer, StoreLayer
    from braidlog.cache.ring import RingMember
    from braidlog.objects.open import open_store, redacted
    from braidlog.runtime.clock import SystemClock
    from braidlog.runtime.entropy import SystemEntropy

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    store = open_store(store_url, clock=SystemClock(), entropy=SystemEntropy())
    bottom = StoreLayer(store)
    layer: Layer = bottom
    if disk is not None:
        layer = DiskLayer(layer, disk, bytes_max=disk_bytes)
    memory = MemoryLayer(layer, bytes_max=memory_bytes, whole=whole, on_write=on_write)
    member = RingMember(memory)
    try:
        address = await member.start(listen)
        facts = {"pid": os.getpid(), "cache": address}
        say(f"braid shuffle cache: ready, {address}, store {redacted(store_url)}")
        if output is OutputFormat.JSON:
            emit_json({"ready": "braid shuffle cache", **facts})
        if ready_file is not None:
            unfinished = ready_file.with_name(f"{ready_file.name}.{os.getpid()}")
            unfinished.write_text(json.dumps(facts))
            unfinished.rename(ready_file)
        await stop.wait()
    finally:
        await member.close()
        await store.close()
    found = memory.statistics()
    say(
        f"braid shuffle cache: stopped after {bottom.puts} PUTs and {bottom.gets} GETs,"
        f" {found.hit_rate:.0%} of reads were hits"
    )


@app.command()
def expire(
    store: Store,
    retention: Retention = "1h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    states: Annotated[
        str, typer.Option("--states", metavar="TIME", help="Also states of streams that have not run for so long.")
    ] = "",
    format: Format = OutputFormat.TEXT,
) -> None:
    """Remove batches that no application needs any more. Run it every few minutes, anywhere.

    Example: braid shuffle expire --store s3://bucket/prefix --retention 1h
    """
    from dataclasses import asdict

    reports = asyncio.run(_expire(store, _seconds(retention), _seconds(states) if states else None, dry_run))
    told = {name: value for report in reports for name, value in asdict(report).items()}
    emit_fields(format, {**told, "dry_run": dry_run})


async def _expire(
    store_url: str, retention_s: float, states_s: float | None, dry_run: bool
) -> "list[ExpiryReport | StatesReport]":
    from braidlog.objects.open import open_store
    from braidlog.runtime.clock import SystemClock
    from braidlog.runtime.entropy import SystemEntropy
    from braidlog.spark.shuffle.expiry import expire, expire_states

    clock = SystemClock()
    store = open_store(store_url, clock=clock, entropy=SystemEntropy())
    try:
        reports: list[ExpiryReport | StatesReport] = [
            await expire(store, retention_s=retention_s, clock=clock, dry_run=dry_run)
        ]
        if states_s is not None:
            reports.append(await expire_states(store, retention_s=states_s, clock=clock, dry_run=dry_run))
        return reports
    finally:
        await store.close()


@app.command()
def lifecycle(
    store: Store,
    retention: Retention = "1h",
    format: Format = OutputFormat.TEXT,
) -> None:
    """Print the rule by which the bucket itself removes old batches: a net below `braid shuffle expire`.

    Example: braid shuffle lifecycle --store s3://bucket/prefix > lifecycle.json
    """
    from braidlog.spark.shuffle.expiry import lifecycle_command, lifecycle_rules

    rules = lifecycle_rules(store, retention_s=_seconds(retention))
    if format is OutputFormat.JSON:
        emit_json(rules)
        return
    typer.echo(json.dumps(rules, indent=2))
    say(f"With this in lifecycle.json: {' '.join(lifecycle_command(store))}")


def _bytes(text: str) -> int:
    from braidlog.cli.errors import CommandError
    from braidlog.runtime.quantities import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise CommandError(f"{text!r} {error}", help="For example 4GiB.") from error


def _seconds(text: str) -> float:
    from braidlog.cli.errors import CommandError
    from braidlog.runtime.quantities import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise CommandError(f"{text!r} {error}", help="For example 1h.") from error
