"""The `braid` command: one module per noun. What is slow to load is imported where it is used."""

import os
import signal
import sys
from typing import Annotated

import typer

from braidlog.cli import (
    costs,
    groups,
    inspecting,
    jobs,
    lightning,
    processes,
    records,
    ripcord,
    shuffling,
    simulating,
    topics,
)
from braidlog.cli.errors import report
from braidlog.cli.options import Config, Format, Set
from braidlog.cli.output import OutputFormat, emit, emit_fields, emit_rows
from braidlog.runtime.tunables import restart_tuned

MOVES_MEGABYTES = frozenset({"up", "agent", "shard"})

app = typer.Typer(
    name="braid",
    help="Braidlog: a Kafka-compatible log whose only data layer is object storage.",
    epilog="Start here: `braid up` in one terminal, then `braid topic create events` in another; or just `braid demo`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    rich_markup_mode=None,
)
app.add_typer(topics.app, name="topic")
app.add_typer(groups.app, name="group")
app.add_typer(costs.app, name="cost")
app.add_typer(shuffling.app, name="shuffle")
app.add_typer(lightning.app, name="lightning")
app.add_typer(ripcord.app, name="ripcord")
app.command("up")(processes.up)
app.command("agent")(processes.agent)
app.command("control")(processes.control)
app.command("shard", hidden=True)(processes.shard)
app.command("pipeline")(jobs.pipeline)
app.command("jobs")(jobs.jobs)
app.command("compact")(jobs.compact)
app.command("produce")(records.produce)
app.command("consume")(records.consume)
app.command("inspect")(inspecting.inspect)
app.command("sim")(simulating.simulate)
app.command("mutants")(simulating.mutants)


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def braid(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def doctor(
    config: Config = None,
    set: Set = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Check that store, metadata, clock and addresses are what Braidlog needs.

    Example: braid doctor --set store_url=s3://bucket/prefix
    """
    from braidlog.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(config, set, format))


@app.command()
def demo(
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the records, without a progress bar.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the data behind, and say where it is.")] = False,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Start real processes, produce, kill an agent in the middle, consume, count, and show the bill.

    Example: braid demo --quick
    """
    from braidlog.cli.demo import run_demo

    raise typer.Exit(run_demo(quick=quick, keep=keep, output=format))


@app.command()
def settings(config: Config = None, set: Set = None, format: Format = OutputFormat.TEXT) -> None:
    """List every setting: its value, where that comes from, and what it is for.

    Example: braid settings --config braidlog.toml
    """
    from braidlog.cli.processes import gather
    from braidlog.runtime.settings import fields

    gathered = gather(config, set, {})
    rows = []
    for name, field in sorted(fields().items()):
        part = gathered.agent if name in type(gathered.agent).model_fields else gathered.control
        value = getattr(part, name)
        rows.append(
            {
                "setting": name,
                "value": "off" if value is None and name.endswith("listen") else value,
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

    Example: braid version --format json
    """
    import platform

    from braidlog import __version__

    if format is OutputFormat.JSON:
        emit_fields(format, {"version": __version__, "python": platform.python_version()})
    else:
        emit(f"braidlog {__version__}")


def main() -> None:
    """Run the command, and turn what goes wrong into two lines and an exit code."""
    if sys.argv[1:2] and sys.argv[1] in MOVES_MEGABYTES:
        restart_tuned()
    code = _run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stderr.flush()
    if "obstore" in sys.modules:
        # Its threads may still let go of Python objects, and abort the process if the interpreter is being taken down
        # meanwhile. Everything of ours is closed and flushed by now.
        os._exit(code)
    sys.exit(code)


def _run() -> int:
    # Asked to end, a command ends as it does by Ctrl-C: a consumer commits and leaves its group first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - the outermost door: whatever it is, it is explained
        return report(error)
    return 0


if __name__ == "__main__":
    main()
