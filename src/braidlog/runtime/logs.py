"""Logs, to standard error: for people on a terminal, else as JSON.

There is one JSON object a line.
"""

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO

import structlog
from structlog.typing import Processor

from braidlog.runtime.clock import Clock, SystemClock

_OWN = "braidlog"
"""The logger that keeps our own level."""


def use_colour(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Whether to colour what goes to `stream`.

    Only on a terminal, and never with NO_COLOR.
    """
    environ = os.environ if environ is None else environ
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _timestamp(clock: Clock, human: bool) -> Processor:
    def add(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        moment = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
        event["timestamp"] = (
            moment.astimezone().strftime("%H:%M:%S.%f")[:-3] if human else moment.isoformat(timespec="milliseconds")
        )
        return event

    return add


def configure_logs(
    level: str = "info",
    format: str = "auto",  # noqa: A002 - named like the setting
    *,
    stream: TextIO | None = None,
    clock: Clock | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Send all logs, those of libraries too, to `stream` (standard error).

    Call it once, when the process starts.
    """
    stream = sys.stderr if stream is None else stream
    human = format == "human" or (format == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        _timestamp(SystemClock() if clock is None else clock, human),
    ]
    console = structlog.dev.ConsoleRenderer(
        colors=use_colour(stream, environ),
        pad_event_to=32,
        sort_keys=False,
        # Prettier formatters show local variables, which hold what clients sent.
        exception_formatter=structlog.dev.plain_traceback,
    )
    renderer: list[Processor] = (
        [console] if human else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    )
    structlog.configure(
        processors=[*shared, *renderer],
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_log_level(level)


def log_level() -> str:
    """The level that this process logs at: debug, info, warning, error or critical."""
    level = logging.getLogger(_OWN).level
    return logging.getLevelName(level).lower() if level != logging.NOTSET else "info"


def set_log_level(level: str) -> None:
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(**{**structlog.get_config(), "wrapper_class": structlog.make_filtering_bound_logger(number)})
    logging.getLogger(_OWN).setLevel(number)
    # Libraries log much at info that no operator needs. Only their warnings and errors matter here.
    logging.getLogger().setLevel(max(number, logging.WARNING))
