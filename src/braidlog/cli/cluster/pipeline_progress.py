"""Shows how `braid pipeline` goes on: a bar by bytes, and where Spark's page is."""

from typing import TYPE_CHECKING

from braidlog.cli.output import say
from braidlog.cli.progress import byte_bar

if TYPE_CHECKING:
    from braidlog.node.pipeline import Pipeline

LOOK_INTERVAL_S = 0.5


async def show_progress(pipeline: "Pipeline") -> None:
    """Show a bar on a terminal while there are jobs, until it is cancelled."""
    from braidlog.runtime.clock import SystemClock

    clock = SystemClock()
    page = ""
    while True:
        status = pipeline.status()
        if status.page and status.page != page:
            say(f"braid pipeline: Spark's page is {status.page}")
        page = status.page
        if status.jobs:
            done_before = status.bytes_done
            with byte_bar("merging and compacting") as bar:
                while status.jobs:
                    note = " ".join(each for each in (f"{status.jobs} jobs", status.stage, status.page) if each)
                    bar.show(status.bytes_done - done_before, status.bytes_total - done_before, note)
                    await clock.sleep(LOOK_INTERVAL_S)
                    status = pipeline.status()
            continue
        await clock.sleep(LOOK_INTERVAL_S)
