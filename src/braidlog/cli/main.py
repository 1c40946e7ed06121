"""The `braid` command: one module per subject.

Slow modules are imported where they are used.
"""

import os
import signal
import sys
from typing import Annotated

import typer

from braidlog.cli.cluster import acls, groups, jobs, lightning, quotas, ripcord, status, topics, users
from braidlog.cli.environment import unknown_variables
from braidlog.cli.errors import READER_GONE, TERMINATED, report
from braidlog.cli.options import Config, Format, Set
from braidlog.cli.output import OutputFormat, asked_format, emit, emit_fields, emit_rows, warn
from braidlog.cli.records.consume import consume
from braidlog.cli.records.produce import produce
from braidlog.cli.servers import commands as servers
from braidlog.cli.servers.console import console
from braidlog.cli.tools import certificates, cost, shuffle, simulator
from braidlog.cli.tools.inspect_object import inspect
from braidlog.runtime.tunables import restart_tuned

MOVES_MEGABYTES = frozenset({"up", "agent", "shard"})

app = typer.Typer(
    name="braid",
    help="Braidlog: a Kafka-compatible log whose only data layer is object storage.",
    epilog="Start here: `braid up` in one terminal, then `braid topic create events` in another; or just `braid demo`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    rich_markup_mode=None,
)
app.add_typer(status.app, name="cluster")
app.add_typer(topics.app, name="topic")
app.add_typer(groups.app, name="group")
app.add_typer(quotas.app, name="quota")
app.add_typer(acls.app, name="acl")
app.add_typer(users.app, name="user")
app.add_typer(certificates.app, name="cert")
app.add_typer(cost.app, name="cost")
app.add_typer(shuffle.app, name="shuffle")
app.add_typer(lightning.app, name="lightning")
app.add_typer(ripcord.app, name="ripcord")
app.command("up")(servers.up)
app.command("agent")(servers.agent)
app.add_typer(servers.control_app, name="control")
app.command("console")(console)
app.command("shard", hidden=True)(servers.shard)
app.command("pipeline")(jobs.pipeline)
app.command("jobs")(jobs.jobs)
app.command("compact")(jobs.compact)
app.command("produce")(produce)
app.command("consume")(consume)
app.command("inspect")(inspect)
app.command("sim")(simulator.simulate)
app.command("mutants")(simulator.mutants)


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def braid(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand == "shard":
        return  # its supervisor has already warned
    for name, advice in unknown_variables(os.environ):
        warn(f"{name} is set, and means nothing to Braidlog", advice, asked_format(sys.argv[1:]))


@app.command()
def doctor(
    config: Config = None,
    set: Set = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Check that store, metadata, clock and addresses will do.

    \b
    Example: braid doctor --set store_url=s3://bucket/prefix
    """
    from braidlog.cli.tools.doctor import run_doctor

    raise typer.Exit(run_doctor(config, set, format))


@app.command()
def demo(
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the records, without a progress bar.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the data behind, and say where it is.")] = False,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Take a tour of real processes, with a crash and the bill.

    It produces, kills an agent in the middle, consumes, and counts.

    \b
    Example: braid demo --quick
    """
    from braidlog.cli.demo.tour import run_demo

    raise typer.Exit(run_demo(quick=quick, keep=keep, output=format))


@app.command()
def settings(config: Config = None, set: Set = None, format: Format = OutputFormat.TEXT) -> None:
    """List every setting: its value, its origin and its meaning.

    \b
    Example: braid settings --config braidlog.toml
    """
    from braidlog.cli.settings import read_settings
    from braidlog.objects.open import redacted
    from braidlog.runtime.settings import fields, written

    gathered = read_settings(config, set, {})
    rows = []
    for name, field in sorted(fields().items()):
        part = gathered.agent if name in type(gathered.agent).model_fields else gathered.control
        value = getattr(part, name)
        if name == "store_url":  # it may hold the store's credentials
            value = redacted(value)
        rows.append(
            {
                "setting": name,
                "value": written(name, value) if format is OutputFormat.TEXT or value is None else value,
                "from": gathered.origins.get(name, "default"),
                "meaning": field.description,
            }
        )
    if format is OutputFormat.JSON:
        rows = [{**row, "value": v if isinstance(v := row["value"], int | float | None) else str(v)} for row in rows]
    emit_rows(format, ["setting", "value", "from", "meaning"], rows)


@app.command()
def version(format: Format = OutputFormat.TEXT) -> None:
    """Show the version.

    \b
    Example: braid version --format json
    """
    import platform

    from braidlog import __version__

    if format is OutputFormat.JSON:
        emit_fields(format, {"version": __version__, "python": platform.python_version()})
    else:
        emit(f"braidlog {__version__}")


def main() -> None:
    """Run the command, and turn an error into two lines and an exit code."""
    if sys.argv[1:2] and sys.argv[1] in MOVES_MEGABYTES:
        restart_tuned()
    code = _run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or READER_GONE
        # Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stderr.flush()
    if "obstore" in sys.modules:
        # Its threads may still release Python objects, which aborts the process while the interpreter shuts down.
        # Everything of ours is closed and flushed by now.
        os._exit(code)
    sys.exit(code)


def _run() -> int:
    signal.signal(signal.SIGTERM, _terminate)
    stdout = sys.stdout
    try:
        code = app(standalone_mode=False)
        return code if isinstance(code, int) else 0
    except SystemExit as end:
        if sys.stdout is not stdout:
            return READER_GONE  # typer replaces it when a write fails because the reader has gone
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:  # noqa: BLE001 - the outermost handler explains every error
        return report(error, asked_format(sys.argv[1:]))


def _terminate(_number: int, _frame: object) -> None:
    """End a command on SIGTERM as Ctrl-C does.

    A consumer first commits and leaves its group.
    """
    raise SystemExit(TERMINATED)
