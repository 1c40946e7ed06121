"""`braid pipeline`, `braid jobs` and `braid compact`: run, list and request jobs."""

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from braidlog.cli.options import AnyAgent, Config, Control, Format, ReadyFile, Set, StoreUrl, Topic, pairs
from braidlog.cli.output import OutputFormat, counted, emit_json, emit_rows, say
from braidlog.clients.control_client import CALL_TIMEOUT_S, find_control, with_control
from braidlog.clients.errors import CommandError, WrongUsage

if TYPE_CHECKING:
    from braidlog.control.interface import CompactionRequested, ControlPlane, JobListing
    from braidlog.node.assembly import Endpoints

T = TypeVar("T")

LOOK_INTERVAL_S = 0.25


class JobKind(StrEnum):
    """Kinds of jobs, listed here so that help does not load the control plane."""

    MERGE = "merge"
    COMPACT = "compact"
    EXPIRE = "expire"
    SCAN = "scan"
    REPLAY = "replay"


class PipelineEngine(StrEnum):
    """Where a worker runs its jobs."""

    AUTO = "auto"
    SPARK = "spark"
    LOCAL = "local"


class JobState(StrEnum):
    """States of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


def pipeline(
    control: Annotated[str | None, typer.Option("--control", metavar="HOST:PORT", help="The control plane.")] = None,
    store: StoreUrl = None,
    engine: Annotated[
        PipelineEngine | None,
        typer.Option("--engine", metavar="ENGINE", help="spark, local (this process) or auto: by size."),
    ] = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Spark's: local[*], spark://…, k8s://….")
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's own; repeat for more."),
    ] = None,
    spark_from: Annotated[
        str | None, typer.Option("--spark-from", metavar="SIZE", help="With auto, less than that runs in this process.")
    ] = None,
    tasks_at_once: Annotated[
        int, typer.Option("--tasks-at-once", metavar="N", min=1, max=256, help="How many run at once in this process.")
    ] = 4,
    until_stdin_ends: Annotated[
        bool, typer.Option("--until-stdin-ends", hidden=True, help="Stop when standard input ends.")
    ] = False,
    config: Config = None,
    set: Set = None,
    ready_file: ReadyFile = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Run a worker that merges and compacts.

    It takes jobs from the control plane, and reads and writes the store itself or through Spark's tasks.

    \b
    Example: braid pipeline --control 10.0.0.5:9190 --store s3://bucket/prefix
    """
    from braidlog.cli.servers.process import serve
    from braidlog.cli.settings import read_settings

    settings = read_settings(
        config,
        set,
        {
            "control": control,
            "store_url": store,
            "pipeline_engine": engine,
            "pipeline_master": master,
            "pipeline_spark_bytes": spark_from,
        },
    )
    spark_config = pairs(conf, "--conf")

    def start() -> "AbstractAsyncContextManager[Endpoints]":
        from braidlog.cli.cluster.pipeline_progress import show_progress
        from braidlog.node.pipeline import PipelinePlan, run_pipeline

        plan = PipelinePlan(
            tasks_at_once,
            spark_config,
            has_page=not until_stdin_ends,
            ends_with_stdin=until_stdin_ends,
            watch=None if until_stdin_ends else show_progress,
        )
        return run_pipeline(settings.agent, plan)

    serve("braid pipeline", settings.agent, start, ready_file, format)


def jobs(
    kind: Annotated[
        list[JobKind] | None,
        typer.Option("--kind", metavar="KIND", help="merge, compact, expire, scan or replay; repeat for more."),
    ] = None,
    state: Annotated[
        list[JobState] | None,
        typer.Option("--state", metavar="STATE", help="waiting, running, done or failed; repeat for more."),
    ] = None,
    bootstrap: AnyAgent = None,
    control: Control = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """List jobs: open ones first, then the newest that are over.

    \b
    Example: braid jobs --state running --format json
    """
    from braidlog.control.interface import ListJobs

    async def ask(plane: "ControlPlane") -> "list[JobListing]":
        answer = await plane.list_jobs(
            ListJobs([str(each) for each in kind or []], [str(each) for each in state or []]), timeout_s=CALL_TIMEOUT_S
        )
        return answer.jobs

    columns = ["job", "kind", "state", "subject", "stage", "task", "tasks", "bytes_done", "bytes_in", "bytes_out"]
    columns += ["extents_in", "extents_out", "attempts"]
    columns += ["worker", "started", "seconds", "detail"]
    emit_rows(format, columns, [_row(each) for each in with_control(find_control(control, bootstrap), ask)])


def compact(
    topic: Topic,
    now: Annotated[bool, typer.Option("--now", help="Even if little has changed since the last time.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done.")] = True,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait.")] = 600.0,
    bootstrap: AnyAgent = None,
    control: Control = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Compact a topic now: keep the newest record of each key.

    The topic's cleanup.policy must say so.

    \b
    Example: braid compact settings --now
    """
    if not now:
        raise WrongUsage(
            "compaction starts by itself when it is due", help="To start it now: braid compact TOPIC --now"
        )

    async def ask(plane: "ControlPlane") -> "list[JobListing]":
        return await compact_topic(plane, topic, timeout_s if wait else 0.0)

    listings = with_control(find_control(control, bootstrap), ask)
    if format is OutputFormat.JSON:
        emit_json([_row(each) for each in listings])
    for each in listings:
        if format is OutputFormat.TEXT:
            say(f"{each.subject}: {each.state}, {each.bytes_in} bytes{f' to {each.bytes_out}' if wait else ''}")
    if not listings:
        say(f"{topic}: nothing to compact")
    failed = [each for each in listings if each.state == "failed"]
    if failed:
        raise CommandError(f"{counted(len(failed), 'job')} failed: {failed[0].detail}", help="`braid jobs` shows more.")


async def compact_topic(plane: "ControlPlane", topic: str, timeout_s: float) -> "list[JobListing]":
    """Request the compaction and wait for its jobs.

    Repeats that while other jobs on the partitions come first.
    """
    from braidlog.control.interface import ListJobs
    from braidlog.runtime.clock import SystemClock

    clock = SystemClock()
    deadline_s = clock.monotonic_s() + timeout_s
    wanted: dict[int, None] = {}
    while True:
        asked = await _request(plane, topic)
        wanted.update(dict.fromkeys(asked.job_ids))
        listings = {each.job_id: each for each in (await plane.list_jobs(ListJobs(), timeout_s=CALL_TIMEOUT_S)).jobs}
        found = [listings[job_id] for job_id in wanted if job_id in listings]
        is_over = all(each.state in ("done", "failed") for each in found) and not asked.busy_partitions
        if is_over or timeout_s <= 0:
            return found
        if clock.monotonic_s() > deadline_s:
            raise CommandError(
                f"{topic} is not compacted after {timeout_s:.0f} s",
                help="Is a worker running? `braid jobs` shows more.",
            )
        await clock.sleep(LOOK_INTERVAL_S)


async def _request(plane: "ControlPlane", topic: str) -> "CompactionRequested":
    from kio.schema.errors import ErrorCode

    from braidlog.control.interface import RequestCompaction

    asked = await plane.request_compaction(RequestCompaction(topic), timeout_s=CALL_TIMEOUT_S)
    if asked.error_code == ErrorCode.unknown_topic_or_partition:
        raise CommandError(asked.error_message, help="`braid topic list` shows the topics.")
    if asked.error_code:
        raise CommandError(
            asked.error_message, help=f"braid topic alter {topic} --set cleanup.policy=compact, if it should be."
        )
    return asked


def _row(listing: "JobListing") -> dict[str, Any]:
    ended = listing.finished_ms >= 0 and listing.started_ms >= 0
    return {
        "job": listing.job_id,
        "kind": listing.kind,
        "state": listing.state,
        "subject": listing.subject,
        "stage": listing.progress.stage or None,
        "task": listing.progress.task if listing.progress.task >= 0 else None,
        "tasks": f"{listing.progress.tasks_done}/{listing.progress.tasks}" if listing.progress.tasks else None,
        "bytes_done": listing.progress.bytes_done,
        "bytes_in": listing.bytes_in,
        "bytes_out": listing.bytes_out,
        "extents_in": listing.extents_in,
        "extents_out": listing.extents_out,
        "attempts": listing.attempts,
        "worker": listing.worker or None,
        "created": _time(listing.created_ms),
        "started": _time(listing.started_ms),
        "finished": _time(listing.finished_ms),
        "seconds": round((listing.finished_ms - listing.started_ms) / 1000, 1) if ended else None,
        "detail": listing.detail or None,
    }


def _time(at_ms: int) -> str | None:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds") if at_ms >= 0 else None
