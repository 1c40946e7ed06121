"""`braid inspect URL`: show what an object holds, from its footer."""

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import typer

from braidlog.cli.options import Format
from braidlog.cli.output import OutputFormat, emit, emit_json, emit_rows


def inspect(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="An object: s3://bucket/…/data/…, file:///…/data/…, or a path.")
    ],
    format: Format = OutputFormat.TEXT,
) -> None:
    """Show an object's footer: its extents and their partitions.

    \b
    Example: braid inspect data/store/data/b/0000000001/4d9f28b6e30a756f-01
    """
    description = asyncio.run(_describe(url))
    if format is OutputFormat.JSON:
        emit_json({"url": url, **description})
        return
    for name, value in description.items():
        if name != "extents":
            emit(f"{name.replace('_', ' '):<16}{value}")
    if description["extents"]:
        emit("")
        rows = [{**extent, "batches": len(extent["batches"])} for extent in description["extents"]]
        columns = ["topic_id", "partition", "position", "length_bytes", "record_count", "batches", "timestamp_ms_max"]
        emit_rows(format, columns, rows)


def _absolute(url: str) -> str:
    """Turn a path into a URL; a URL stays as it is."""
    scheme, separator, rest = url.partition("://")
    if separator and not (scheme == "file" and rest.startswith(("./", "../"))):
        return url
    return Path(os.path.abspath(unquote(rest) if separator else url)).as_uri()


async def _describe(url: str) -> dict[str, Any]:
    from braidlog.clients.errors import CommandError
    from braidlog.objects.format import describe, read_footer
    from braidlog.objects.open import open_store
    from braidlog.objects.store import NotFound
    from braidlog.runtime.clock import SystemClock
    from braidlog.runtime.entropy import SystemEntropy

    path, question_mark, options = _absolute(url).partition("?")
    folder, _, key = path.rpartition("/")
    if not folder.partition("://")[2] or not key:
        raise CommandError(
            f"{url!r} names no object", help="Write file:///path/to/object or s3://bucket/path/to/object."
        )
    store = open_store(f"{folder}{question_mark}{options}", clock=SystemClock(), entropy=SystemEntropy())
    try:
        return describe(await read_footer(store, key), (await store.head(key)).size)
    except NotFound:
        raise CommandError(
            f"there is no object {path}", help="Objects lie under data/ in the store that `braid settings` shows."
        ) from None
    finally:
        await store.close()
