"""Spark sessions with the settings that suit Braidlog, on any master."""

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING

from braidlog.runtime.errors import InvalidSetting
from braidlog.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
DAEMON_MODULE = "braidlog.spark.daemon"

_SETTINGS = {
    # Rows become Arrow batches of this size on their way between the JVM and Python: larger ones are slower.
    "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
    # Only bytes should limit a batch. Zero, which means no limit elsewhere, breaks data sources in Python.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": DAEMON_MODULE,
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""A JVM that is ready sooner and takes less memory, and whose long computations are slower."""


def create_session(
    master: str = "local[*]",
    *,
    app_name: str = "braidlog",
    config: Mapping[str, str] | None = None,
    quick: bool = False,
    progress: bool | None = None,
) -> "SparkSession":
    """A session that knows the format `braidlog`.

    `master` is any that Spark knows: `local[4]`, `spark://host:7077`, `k8s://…`, or `sc://host:15002` for Spark
    Connect. `config` has the last word on every setting. `quick` is for short programs: it starts sooner. `progress`
    shows a bar per stage; by default only on a terminal.
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
        session = builder.getOrCreate()
    register(session)
    return session


def session_settings(
    master: str, config: Mapping[str, str], *, quick: bool = False, progress: bool | None = None
) -> dict[str, str]:
    """All settings of a session, those of the caller included. JVM options of both sides are joined."""
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
        # Everything is on this machine: nobody else need reach it, whatever its name resolves to.
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
