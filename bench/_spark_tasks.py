"""What Spark's own event log says of the tasks, and the processes of its executors."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def event_log_config(folder: Path) -> dict[str, str]:
    """Settings with which Spark writes one plain file of events for each application."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


@dataclass(frozen=True, slots=True)
class Task:
    """The end of an attempt at a task."""

    stage: int
    number: int
    executor: str
    launched_ms: int
    finished_ms: int
    is_good: bool


def read_tasks(folder: Path) -> list[Task]:
    """The ends of all attempts, in their order. The application must be over."""
    return [
        Task(
            event["Stage ID"],
            event["Task Info"]["Index"],
            event["Task Info"]["Executor ID"],
            event["Task Info"]["Launch Time"],
            event["Task Info"]["Finish Time"],
            event["Task End Reason"]["Reason"] == "Success",
        )
        for event in _events(folder, "SparkListenerTaskEnd")
    ]


def lost_executors(folder: Path) -> list[str]:
    """The executors that Spark has missed."""
    return [event["Executor ID"] for event in _events(folder, "SparkListenerExecutorRemoved")]


def _events(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = [line for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if event["Event"] == name]


def executor_pids(work_folder: Path) -> list[int]:
    """The executors of the worker that has this folder."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_executor = b"ExecutorBackend" in (path / "cmdline").read_bytes()
            if is_executor and work_folder.resolve() in (path / "cwd").resolve().parents:
                found.append(int(path.name))
        except OSError:
            continue  # it has ended, or is another user's
    return found
