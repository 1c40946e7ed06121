"""Run a server in this process until a signal asks it to stop."""

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braidlog.cli.output import OutputFormat, emit_json, say
from braidlog.clients.errors import CommandError

if TYPE_CHECKING:
    from braidlog.node.assembly import Endpoints
    from braidlog.runtime.settings import CommonSettings

_READY_FILE_HELP = "Name a file in a folder that is there and that this user may write to."


def serve(
    name: str,
    settings: "CommonSettings",
    start: "Callable[[], AbstractAsyncContextManager[Endpoints]]",
    ready_file: Path | None,
    output: OutputFormat,
) -> None:
    """Run until a signal. The first one stops cleanly, the second at once."""
    from braidlog.runtime.logs import configure_logs

    _check_ready_file(ready_file)
    configure_logs(settings.log_level, settings.log_format)
    skip_hypothesis()

    async def run() -> None:
        stop = _stop_on_signals(name)
        _unready(ready_file)
        running = start()
        starting = asyncio.ensure_future(running.__aenter__())
        stopping = asyncio.ensure_future(stop.wait())
        lost: asyncio.Future[str] | None = None
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                return
            endpoints = starting.result()
            try:
                tune_garbage_collection()
                _announce(name, endpoints, settings, ready_file, output)
                lost = asyncio.ensure_future(endpoints.wait_lost())
                await asyncio.wait({stopping, lost}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                _unready(ready_file)
                await running.__aexit__(None, None, None)
        finally:
            stopping.cancel()
            if lost is not None:
                lost.cancel()
        if not stop.is_set() and lost is not None:
            raise CommandError(lost.result(), help="Two control planes must not share one metadata store; stop one.")
        say(f"{name}: stopped")

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run())


def skip_hypothesis() -> None:
    """Keep the Kafka codec from loading hypothesis if that is installed.

    An agent would take twice as long to start.
    """
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]


def tune_garbage_collection() -> None:
    """Collect garbage rarely, and leave out what was loaded at the start.

    A server makes many objects that die young. With the defaults, collections took a quarter of the time of small
    requests, in pauses of up to 90 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not available everywhere; asyncio's own loop works, more slowly
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _stop_on_signals(name: str) -> asyncio.Event:
    stop = asyncio.Event()

    def asked(number: signal.Signals) -> None:
        if stop.is_set():
            say(f"{name}: stopping at once")
            os._exit(128 + number)
        say(f"{name}: stopping; once more to stop at once")
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked, number)
    return stop


def _check_ready_file(ready_file: Path | None) -> None:
    """Check before the start that the file can be written.

    Whoever waits for it would wait for ever.
    """
    if ready_file is None:
        return
    folder = ready_file.parent
    if not folder.is_dir():
        why = f"there is no folder {folder}"
    elif ready_file.is_dir():
        why = "it is a folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = f"{folder} is not writable"
    else:
        return
    raise CommandError(f"--ready-file {ready_file} cannot be written: {why}", help=_READY_FILE_HELP)


def _unready(ready_file: Path | None) -> None:
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)


def _announce(
    name: str, endpoints: "Endpoints", settings: "CommonSettings", ready_file: Path | None, output: OutputFormat
) -> None:
    from braidlog.objects.open import redacted

    facts: dict[str, Any] = {"pid": os.getpid(), **endpoints.as_dict()}
    if ready_file is not None:
        # A reader must never see half of the file.
        unfinished = ready_file.with_name(f"{ready_file.name}.{os.getpid()}")
        try:
            unfinished.write_text(json.dumps(facts))
            unfinished.rename(ready_file)
        except OSError as error:
            raise CommandError(
                f"--ready-file {ready_file} cannot be written: {error.strerror}", help=_READY_FILE_HELP
            ) from error
    if output is OutputFormat.JSON:
        emit_json({"ready": name, **facts})
    parts = [f"{what} {where}" for what, where in endpoints.as_dict().items()]
    say(f"{name}: ready, {', '.join(parts)}, store {redacted(settings.store_url)}")
