"""Real Braidlog processes for a benchmark: started on free loopback ports, metered, and stopped by their id."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
LOG_TAIL_BYTES = 4000

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Process:
    """One `braid` process in a folder of its own, which goes with it."""

    def __init__(
        self, command: str, *, store: str, settings: dict[str, str] | None = None, control: "Process | None" = None
    ) -> None:
        """`store`: `file` or `memory`. With `control`, an agent of that control plane, on its store."""
        self._control = control
        self._command = command
        self._store = store
        self._settings = settings or {}
        self._folder = tempfile.TemporaryDirectory(prefix="braidlog-bench-")
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoints: dict[str, str] = {}
        self.store_url = ""

    def __enter__(self) -> "Process":
        folder = Path(self._folder.name)
        store_url = f"file://{folder}/store" if self._store == "file" else "memory://"
        if self._control is None:
            place = ["--metadata", f"sqlite://{folder}/metadata.db"]
        else:
            store_url = self._control.store_url
            place = ["--control", self._control.endpoints["control"]]
        self.store_url = store_url
        arguments = [
            *(self._command, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--store", store_url, *place),
            *("--ready-file", f"{folder}/ready.json"),
        ]
        for name, value in {"log_level": "warning", **self._settings}.items():
            arguments += ["--set", f"{name}={value}"]
        # The machine's own settings must not change what is measured.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BRAIDLOG_")}
        with open(folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "braidlog", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment,
            )
        try:
            self._wait_ready(folder / "ready.json")
        except BaseException:
            self._stop()
            raise
        return self

    def _wait_ready(self, ready: Path) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not ready.exists():
            if self._running.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"braid {self._command} did not start:\n{self.log_tail()}")
            time.sleep(0.02)
        self.endpoints = json.loads(ready.read_text())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            sys.stderr.write(self.log_tail())
        self._stop()

    def _stop(self) -> None:
        process = self._running
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()

    @property
    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self._running.pid

    def log_tail(self) -> str:
        return (Path(self._folder.name) / "log").read_text(errors="replace")[-LOG_TAIL_BYTES:]

    def address(self, endpoint: str) -> tuple[str, int]:
        host, _, port = self.endpoints[endpoint].rpartition(":")
        return host, int(port)

    def cpu_s(self) -> float:
        """User and system time so far, of all threads and children."""
        return sum(map(cpu_s_of, _family(self.pid)))

    def shard_pids(self) -> list[int]:
        """Return the processes of the shards, for an agent that has several."""
        return _family(self.pid)[1:]

    def resident_bytes(self) -> int:
        """The most that the process ever held."""
        match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return int(match[1]) * 1024 if match else 0

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name that have these labels."""
        host, port = self.address("metrics")
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        total = 0.0
        for line in lines:
            if re.match(rf"{name}[{{ ]", line) and all(f'{label}="{value}"' in line for label, value in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total


_TOUCH = """
import mmap, resource, sys
memory = mmap.mmap(-1, int(sys.argv[1]))
before_s = resource.getrusage(resource.RUSAGE_SELF).ru_stime
for position in range(0, len(memory), mmap.PAGESIZE):
    memory[position] = 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_stime - before_s)
"""


def fresh_memory_cpu_s(size_bytes: int) -> float:
    """The kernel's CPU seconds for handing out that much memory. On a virtual machine whose host hands it out page by
    page, that is many times the cost of writing to it."""
    command = [sys.executable, "-c", _TOUCH, str(size_bytes)]
    return float(subprocess.run(command, check=True, timeout=120, stdout=subprocess.PIPE).stdout)


def _family(pid: int) -> list[int]:
    """The process and everything that descends from it."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


def cpu_s_of(pid: int) -> float:
    """User and system time of a process' own threads and of its dead children."""
    # Linux knows a clock for each process, to the nanosecond; what /proc has is counted in ticks of ten milliseconds,
    # and that is all there is of children that are gone.
    own_s = time.clock_gettime((~pid << 3) | 2)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # a name may hold spaces
    return own_s + sum(map(int, fields[13:15])) / _TICKS_PER_S
