"""Real processes of Braidlog on loopback: started, killed, paused, started again, and always ended."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from braidlog.runtime.tunables import tuned

# As long as a machine may take that has much else to do: nothing is slower for it where all goes well.
START_S_MAX = 90.0
STOP_S_MAX = 60.0
WAIT_S_MAX = 60.0
LOG_TAIL_LINES = 60

T = TypeVar("T")

# Below the range that the kernel takes for outgoing connections: nobody else then gets the port of a process that was
# killed and will be started again.
_PORTS = range(18_000, 32_000)
_port_numbers = count(os.getpid() * 12)

_clusters: list["Cluster"] = []


def free_port(count: int = 1) -> int:
    """The first of so many ports in a row that nobody listens on, and that no later call gives again."""
    row: list[int] = []
    while len(row) < count:
        port = _PORTS[next(_port_numbers) % len(_PORTS)]
        if row and port != row[-1] + 1:
            row.clear()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                row.clear()
            else:
                row.append(port)
    return row[0]


def wait_until(
    condition: Callable[[], T], *, timeout_s: float = WAIT_S_MAX, what: str = "it", interval_s: float = 0.02
) -> T:
    """Poll another process, which has no other way to say it: returns the first true result."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} did not happen within {timeout_s} s")
        time.sleep(interval_s)


def running_clusters() -> list["Cluster"]:
    """All that exist now, for whoever wants to show their logs."""
    return list(_clusters)


class Process:
    """One `braid up`, `braid control` or `braid agent`, at a fixed port. Each start appends to the same log."""

    def __init__(self, name: str, arguments: list[str], port: int, folder: Path) -> None:
        self.name = name
        self.port = port
        self.log_path = folder / f"{name}.log"
        self._ready_path = folder / f"{name}.ready"
        self._command = [
            sys.executable,
            "-m",
            "braidlog",
            *arguments,
            "--ready-file",
            str(self._ready_path),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.facts: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> "Process":
        assert not self.is_running
        self._ready_path.unlink(missing_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=tuned({**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}),
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout_s: float = START_S_MAX) -> None:
        def ready() -> bool:
            if not self.is_running:
                raise RuntimeError(f"{self.name} ended with {self.returncode}:\n{self.log_tail()}")
            return self.is_ready

        try:
            wait_until(ready, timeout_s=timeout_s, what=f"the start of {self.name}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}:\n{self.log_tail()}") from None
        self.facts = json.loads(self._ready_path.read_text())

    @property
    def is_ready(self) -> bool:
        return self._ready_path.exists()

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """SIGKILL: no goodbye, nothing flushed."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S_MAX)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM, without waiting for what follows."""
        os.kill(self.pid, signal.SIGTERM)

    def stop(self, timeout_s: float = STOP_S_MAX) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        if self.is_running:
            self.terminate()
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = STOP_S_MAX) -> int:
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} has not ended after {timeout_s} s:\n{self.log_tail()}") from None

    def restart(self) -> "Process":
        """Kill, and start again at the same port."""
        if self.is_running:
            self.kill()
        return self.start()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()  # works on a paused one too
            self._process.wait(STOP_S_MAX)

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


class Cluster:
    """One store, one metadata file, and the processes that are started on them.

    Use it as a context: on leaving, whatever still runs is killed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        store_url: str | None = None,
        metadata_url: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.folder = folder
        self.store_path = folder / "store"
        """Where the objects are, unless another store was named."""
        self.store_url = store_url or f"file://{self.store_path}"
        self.metadata_path = folder / "metadata.db"
        self.metadata_url = metadata_url or f"sqlite://{self.metadata_path}"
        self.settings = dict(settings or {})
        self.processes: dict[str, Process] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "Cluster":
        _clusters.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes.values():
            process.close()
        _clusters.remove(self)

    def up(self, name: str = "up", **settings: object) -> Process:
        """Control plane and agent in one process."""
        port = free_port()
        return self._add(
            name,
            ["up", "--listen", f"127.0.0.1:{port}", "--metadata", self.metadata_url, "--metrics", "off"],
            port,
            {"control_metrics_listen": "off", **settings},
        )

    def control(self, name: str = "control", *, wait: bool = True, **settings: object) -> Process:
        port = free_port()
        return self._add(
            name,
            ["control", "--listen", f"127.0.0.1:{port}", "--metadata", self.metadata_url, "--metrics", "off"],
            port,
            settings,
            wait=wait,
        )

    def agent(
        self,
        name: str = "agent",
        *,
        control: Process | Sequence[Process],
        shards: int = 1,
        metrics: str = "off",
        **settings: object,
    ) -> Process:
        controls = [control] if isinstance(control, Process) else control
        port = free_port(shards)  # its other shards take the ports behind the first
        return self._add(
            name,
            ["agent", "--listen", f"127.0.0.1:{port}", "--control", ",".join(each.address for each in controls)],
            port,
            {"shards": shards, "metrics_listen": metrics, **settings},
        )

    def bootstrap(self) -> str:
        """Every address that clients can connect to, of processes that were started."""
        return ",".join(process.address for name, process in self.processes.items() if name != "control")

    def logs(self) -> Iterator[tuple[str, str]]:
        for name, process in self.processes.items():
            yield name, process.log_tail()

    def _add(
        self, name: str, arguments: list[str], port: int, settings: Mapping[str, object], *, wait: bool = True
    ) -> Process:
        assert name not in self.processes
        command = [*arguments, "--store", self.store_url]
        for setting, value in {**self.settings, **settings}.items():
            command += ["--set", f"{setting}={value}"]
        process = Process(name, command, port, self.folder)
        self.processes[name] = process
        return process.start(wait=wait)
