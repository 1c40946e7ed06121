"""Creates Spark sessions with settings that suit Braidlog, on any master."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING

from braidlog.runtime.errors import InvalidSetting
from braidlog.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
STOP_TIMEOUT_S = 20.0
TASK_TRIES_MAX = 4
DAEMON_MODULE = "braidlog.spark.daemon"

_SETTINGS = {
    # Rows travel between the JVM and Python in Arrow batches of this size. Larger ones are slower.
    "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
    # Only bytes should limit a batch. Zero means no limit elsewhere, but breaks data sources in Python.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": DAEMON_MODULE,
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""Makes the JVM start sooner and take less memory. Long computations are slower."""


def create_session(
    master: str = "local[*]",
    *,
    app_name: str = "braidlog",
    config: Mapping[str, str] | None = None,
    quick: bool = False,
    progress: bool | None = None,
) -> "SparkSession":
    """Create a session that knows the format `braidlog`.

    `master` is any master that Spark knows: `local[4]`, `spark://host:7077`, `k8s://…`, or `sc://host:15002` for Spark
    Connect. `config` overrides every setting. `quick` makes the session start sooner, for short programs. `progress`
    shows a bar for each stage; by default only on a terminal.
    """
    from braidlog.spark.datasource import register

    _check_packages()
    from pyspark.sql import SparkSession

    if master.startswith("sc://"):
        session = SparkSession.builder.remote(master).appName(app_name).getOrCreate()
        for name, value in (config or {}).items():
            session.conf.set(name, value)
    else:
        settings = session_settings(master, config or {}, quick=quick, progress=progress)
        os.environ["JAVA_HOME"] = str(find_java().home)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        builder = SparkSession.builder.master(master).appName(app_name)
        for name, value in settings.items():
            builder = builder.config(name, value)
        with _page_on_loopback(master):
            session = builder.getOrCreate()
    register(session)
    return session


@contextmanager
def _page_on_loopback(master: str) -> Iterator[None]:
    """Keep the page of a local session on this machine.

    Spark takes its address from the environment only.
    """
    if not master.startswith("local") or "SPARK_LOCAL_IP" in os.environ:
        yield
        return
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    try:
        yield
    finally:
        del os.environ["SPARK_LOCAL_IP"]  # a later session may be for a cluster


def with_task_retries(master: str) -> str:
    """Let a local master try tasks again: `local[4]` becomes `local[4,4]`."""
    found = re.fullmatch(r"local(?:\[(\*|[0-9]+)\])?", master)
    return f"local[{found[1] or 1},{TASK_TRIES_MAX}]" if found else master


def stop_session(session: "SparkSession") -> None:
    """Stop a session, and end the Java process that this process has started for it.

    Spark itself keeps that process, with all its memory, until the Python process ends.
    """
    from pyspark import SparkContext

    with suppress(Exception):  # the Java process may be dead already
        session.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    with suppress(Exception):
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()  # it ends when its standard input does
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def session_settings(
    master: str, config: Mapping[str, str], *, quick: bool = False, progress: bool | None = None
) -> dict[str, str]:
    """Return all settings of a session.

    The caller's settings win, except that JVM options are combined.
    """
    options = f"-Dlog4j2.configurationFile=file:{files('braidlog.spark').joinpath('log4j2.properties')}"
    if quick:
        options = f"{options} {_QUICK_START}"
    shows_progress = sys.stderr.isatty() if progress is None else progress
    settings = {
        **_SETTINGS,
        "spark.ui.showConsoleProgress": str(shows_progress).lower(),
        "spark.driver.extraJavaOptions": options,
        "spark.executor.extraJavaOptions": _QUICK_START if quick else "",
    }
    if master.startswith("local"):
        # Everything runs on this machine, so nothing else needs to reach it.
        settings["spark.driver.host"] = LOOPBACK
        settings["spark.driver.bindAddress"] = LOOPBACK
    for name, value in config.items():
        joins = name.endswith(".extraJavaOptions") and settings.get(name)
        settings[name] = f"{settings[name]} {value}" if joins else value
    return {name: value for name, value in settings.items() if value}


def _check_packages() -> None:
    try:
        for name in ("pandas", "pyarrow", "pyspark"):
            import_module(name)
    except ImportError as error:
        raise InvalidSetting(f"Spark cannot be used: {error}", help="Run: pip install 'braidlog[spark]'") from error
