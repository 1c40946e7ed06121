"""Braidlog's processes as children of this one: started, waited for, killed.

For the demo, tests and benchmarks.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import BraidError
from braidlog.runtime.tunables import tuned

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
LOOK_INTERVAL_S = 0.02


class ProcessFailed(BraidError):
    """A process ended before it was ready, or was used while it was not running."""


class BraidProcess:
    """One `braid …` command.

    Its log goes to `<folder>/<name>.log`, and its addresses come from its ready file.
    """

    def __init__(self, name: str, arguments: Sequence[str], folder: Path, clock: Clock) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.log_path = folder / f"{name}.log"
        self.addresses: dict[str, Any] = {}
        self._ready_path = folder / f"{name}.ready"
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process. `wait_ready` returns when it can be used."""
        self._ready_path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "braidlog", *self.arguments, "--ready-file", str(self._ready_path)]
        # With a tuned environment, the process need not restart itself.
        environ = tuned({name: value for name, value in os.environ.items() if not name.startswith("BRAIDLOG_")})
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, start_new_session=True
            )

    @property
    def is_ready(self) -> bool:
        """Whether `wait_ready` would return at once."""
        return self._ready_path.exists()

    def wait_ready(self) -> None:
        process = self._running()
        deadline_s = self._clock.monotonic_s() + START_TIMEOUT_S
        while not self.is_ready:
            try:
                code = process.wait(LOOK_INTERVAL_S)
            except subprocess.TimeoutExpired:
                if self._clock.monotonic_s() < deadline_s:
                    continue
                self.kill()
                code = None
            what = f"ended with code {code}" if code is not None else f"was not ready within {START_TIMEOUT_S:.0f} s"
            raise ProcessFailed(f"braid {self.name} {what}: {self.last_log_line()}", help=f"Its log: {self.log_path}")
        self.addresses = json.loads(self._ready_path.read_text())

    def last_log_line(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        told = [line for line in lines if line.startswith("error:")] or lines
        return told[-1] if told else "no log"

    def kill(self) -> None:
        """kill -9: no goodbye, nothing flushed."""
        process = self._running()
        process.send_signal(signal.SIGKILL)
        process.wait()
        self._process = None

    def stop(self) -> int:
        """Ask the process to stop cleanly, wait for its end, and return its exit code."""
        process = self._running()
        process.terminate()
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            self._process = None

    def wait(self) -> int:
        """Wait until the process ends by itself, and return its exit code."""
        code = self._running().wait(STOP_TIMEOUT_S)
        self._process = None
        return code

    def metrics(self) -> dict[str, float]:
        return read_figures(self.addresses["metrics"])

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise ProcessFailed(f"braid {self.name} is not running", help="Start it first.")
        return self._process

    def __enter__(self) -> "BraidProcess":
        self.start()
        self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()


def read_figures(address: str) -> dict[str, float]:
    """Return the metrics of a process, by name and labels as /metrics shows them."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    figures: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            figures[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return figures
