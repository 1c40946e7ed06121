"""The demo's cluster: two real processes over a folder."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from braidlog.node.children import BraidProcess
from braidlog.runtime.clock import Clock


class Cluster:
    """A control plane and an agent, each a process, over a store in a folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self.store = f"file://{folder}/store"
        quiet = ["--set", "log_level=warning", "--metrics", "127.0.0.1:0", "--store", self.store]
        self.control = BraidProcess(
            "control",
            ["control", "--listen", "127.0.0.1:0", "--metadata", f"sqlite://{folder}/meta.db", *quiet],
            folder,
            clock,
        )
        self._agent_options = ["--set", "store_price=s3-standard", *quiet]
        self.agent = BraidProcess("agent", [], folder, clock)
        self._requests = {"put": 0, "get": 0}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with self.control:
            self._start_agent("127.0.0.1:0")
            try:
                self.agent.wait_ready()
                yield
            finally:
                self.agent.__exit__(None, None, None)

    def _start_agent(self, listen: str) -> None:
        control = self.control.addresses["control"]
        self.agent.arguments = ["agent", "--control", control, "--listen", listen, *self._agent_options]
        self.agent.start()

    @property
    def bootstrap(self) -> str:
        return str(self.agent.addresses["kafka"])

    def crash_agent(self) -> None:
        """Kill the agent and start it again at the same address, without waiting."""
        self._requests = self.requests()
        where = self.bootstrap
        self.agent.kill()
        self._start_agent(where)

    def requests(self) -> dict[str, int]:
        """Count the requests to the store so far, including those of the crashed agent."""
        figures = self.agent.metrics()

        def count(*operations: str) -> int:
            return int(
                sum(
                    figures.get(f'braidlog_store_requests_total{{operation="{name}",store="main"}}', 0)
                    for name in operations
                )
            )

        return {
            "put": self._requests["put"] + count("put", "update"),
            "get": self._requests["get"] + count("get", "get_range", "get_ranges", "get_tail", "head"),
        }

    def objects(self) -> tuple[int, int]:
        """Count the objects and their bytes."""
        sizes = [path.stat().st_size for path in (self.folder / "store" / "data").rglob("*") if path.is_file()]
        return len(sizes), sum(sizes)
