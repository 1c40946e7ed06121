"""A progress bar on standard error, shown only on a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass(frozen=True, slots=True)
class Bar:
    progress: "Progress"
    task: "TaskID"

    def advance(self) -> None:
        self.progress.advance(self.task)


@contextmanager
def progress_bar(what: str, count: int) -> Iterator[Bar]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as progress:
        yield Bar(progress, progress.add_task(what, total=count))


@dataclass(frozen=True, slots=True)
class ByteBar:
    progress: "Progress"
    task: "TaskID"

    def show(self, done_bytes: int, total_bytes: int, note: str) -> None:
        self.progress.update(self.task, completed=done_bytes, total=total_bytes, note=note)


@contextmanager
def byte_bar(what: str) -> Iterator[ByteBar]:
    """Show a bar by bytes, whose total may grow, with a note behind it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as progress:
        yield ByteBar(progress, progress.add_task(what, total=None, note=""))
