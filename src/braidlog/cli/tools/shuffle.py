"""`braid shuffle`: caches and expiry for shuffles through the store."""

import asyncio
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braidlog.cli.options import Format, ReadyFile, duration_s, size_bytes
from braidlog.cli.output import OutputFormat, emit_fields, emit_json, say
from braidlog.clients.errors import WrongUsage

if TYPE_CHECKING:
    from braidlog.spark.shuffle.expiry.expire import ExpiryReport, StatesReport

app = typer.Typer(help="Caches, expiry and lifecycle rules of shuffles.", no_args_is_help=True)

Store = Annotated[
    str, typer.Option("--store", metavar="URL", help="Where the batches are: the URL of the job's shuffle.")
]
Retention = Annotated[
    str, typer.Option("--retention", metavar="TIME", help="How long batches stay that nothing marks as needed.")
]


@app.command()
def cache(
    store: Store,
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where tasks reach it.")] = (
        "127.0.0.1:9600"
    ),
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="How much to keep in memory.")] = "1GiB",
    disk: Annotated[
        Path | None, typer.Option("--disk", metavar="FOLDER", help="Where to keep what memory has no room for.")
    ] = None,
    disk_size: Annotated[str, typer.Option("--disk-size", metavar="SIZE", help="How much to keep on disk.")] = "20GiB",
    on_write: Annotated[bool, typer.Option(help="Keep written batches, for readers of the zone.")] = True,
    whole: Annotated[bool, typer.Option(help="Cache whole batches, not only the ranges read.")] = True,
    ready_file: ReadyFile = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Run a member of a zone's cache.

    Tasks of the zone put and get batches through its members, one per node.

    \b
    Example: braid shuffle cache --store s3://bucket/prefix --memory 4GiB
    """
    plan = _CachePlan(
        memory_bytes=size_bytes("--memory", memory),
        disk=disk,
        disk_bytes=size_bytes("--disk-size", disk_size),
        on_write=on_write,
        whole=whole,
    )
    asyncio.run(_serve(store, listen, plan, ready_file, format))


@dataclass(frozen=True, slots=True)
class _CachePlan:
    """The layers of a cache: memory, and a disk behind it if there is one."""

    memory_bytes: int
    disk: Path | None
    disk_bytes: int
    on_write: bool
    whole: bool


async def _serve(store_url: str, listen: str, plan: _CachePlan, ready_file: Path | None, output: OutputFormat) -> None:
    from braidlog.cache.disk import DiskLayer
    from braidlog.cache.layers import Layer, MemoryLayer, StoreLayer
    from braidlog.cache.zone_ring import ZoneRingMember
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
    if plan.disk is not None:
        layer = DiskLayer(layer, plan.disk, bytes_max=plan.disk_bytes)
    memory = MemoryLayer(layer, bytes_max=plan.memory_bytes, whole=plan.whole, on_write=plan.on_write)
    member = ZoneRingMember(memory)
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed.")] = False,
    states: Annotated[
        str, typer.Option("--states", metavar="TIME", help="Also remove states of streams idle this long.")
    ] = "",
    format: Format = OutputFormat.TEXT,
) -> None:
    """Remove batches that no application needs any more.

    Run it every few minutes, anywhere.

    \b
    Example: braid shuffle expire --store s3://bucket/prefix --retention 1h
    """
    from dataclasses import asdict

    retention_s = duration_s("--retention", retention)
    states_s = duration_s("--states", states) if states else None
    reports = asyncio.run(_expire(store, retention_s, states_s, dry_run))
    told = {name: value for report in reports for name, value in asdict(report).items()}
    emit_fields(format, {**told, "dry_run": dry_run})


async def _expire(
    store_url: str, retention_s: float, states_s: float | None, dry_run: bool
) -> "list[ExpiryReport | StatesReport]":
    from braidlog.objects.open import open_store
    from braidlog.runtime.clock import SystemClock
    from braidlog.runtime.entropy import SystemEntropy
    from braidlog.spark.shuffle.expiry.expire import expire, expire_states

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
    """Print the rule by which a bucket removes old batches itself.

    It backs up `braid shuffle expire`.

    \b
    Example: braid shuffle lifecycle --store s3://bucket/prefix
    """
    from braidlog.spark.shuffle.expiry.expire import lifecycle_command, lifecycle_rules

    retention_s = duration_s("--retention", retention)
    if not store.startswith(("s3://", "gs://", "az://")):
        raise WrongUsage(
            f"{store} has no lifecycle rules: only buckets (s3://, gs://, az://) remove old objects themselves",
            help=f"Run this every few minutes instead: braid shuffle expire --store {store} --retention {retention}",
        )
    rules = lifecycle_rules(store, retention_s=retention_s)
    if format is OutputFormat.JSON:
        emit_json(rules)
        return
    typer.echo(json.dumps(rules, indent=2))
    say(f"With this in lifecycle.json: {' '.join(lifecycle_command(store))}")
