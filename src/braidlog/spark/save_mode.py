"""Makes `df.write.format("braidlog").save()` append without a mode.

Spark's Kafka sink does the same. For Python data sources, Spark supports only the modes append and overwrite, and
refuses its own default (an error if the target exists) before it asks the source. So pyspark's writers are patched to
say "append" when they write to a topic and no other mode is set. Other formats are not affected.
"""

import functools
from importlib.util import find_spec
from typing import Any

FORMAT = "braidlog"

_DEFAULTS = ("default", "error", "errorifexists")


def append_by_default() -> None:
    """Patch all writers of this process, of classic sessions and of Spark Connect."""
    from pyspark.sql.readwriter import DataFrameWriter

    _wrap(DataFrameWriter)
    if find_spec("grpc") is None:
        return  # Spark Connect needs grpc, and ends `python -c` if it is missing
    try:
        from pyspark.sql.connect.readwriter import DataFrameWriter as RemoteWriter
    except ImportError:
        return
    _wrap(RemoteWriter)


def _wrap(writer_type: Any) -> None:
    original = writer_type.save
    if getattr(original, "appends_to_topics", False):
        return

    @functools.wraps(original)
    def save(self: Any, path: Any = None, format: Any = None, mode: Any = None, *more: Any, **options: Any) -> None:  # noqa: A002 - Spark's name
        source, mode_before = _chosen(self)
        if str(format or source).lower() == FORMAT and str(mode or mode_before or "default").lower() in _DEFAULTS:
            mode = "append"
        original(self, path, format, mode, *more, **options)

    save.appends_to_topics = True  # type: ignore[attr-defined]
    writer_type.save = save


def _chosen(writer: Any) -> tuple[str | None, str | None]:
    """Return the format and mode that are set on a writer."""
    if hasattr(writer, "_jwrite"):
        return writer._jwrite.source(), writer._jwrite.curmode().name()
    return writer._write.source, writer._write.mode
