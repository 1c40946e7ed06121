"""Workers whose connection Spark has closed."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import braidlog.spark
from braidlog.spark.worker_exit import exit_quietly, exit_quietly_here


def daemon_whose_workers(outcome: BaseException | int) -> Any:
    def worker(sock: object, authenticated: bool) -> int:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return SimpleNamespace(worker=worker)


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), ConnectionResetError(104, "reset")])
def test_a_worker_that_nobody_listens_to_ends_without_a_traceback(error: OSError) -> None:
    daemon = daemon_whose_workers(error)
    exit_quietly(daemon)
    exit_quietly(daemon)
    assert daemon.worker(None, True) == 1


def test_everything_else_is_as_it_was() -> None:
    daemon = daemon_whose_workers(0)
    exit_quietly(daemon)
    assert daemon.worker(None, True) == 0
    daemon = daemon_whose_workers(ValueError("wrong"))
    exit_quietly(daemon)
    with pytest.raises(ValueError, match="wrong"):
        daemon.worker(None, True)


def test_whatever_a_worker_of_the_driver_is_given_ends_it_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    exit_quietly_here()  # outside of Spark's daemon, nothing
    daemon = daemon_whose_workers(BrokenPipeError(32, "Broken pipe"))
    daemon.__spec__ = SimpleNamespace(name="pyspark.daemon")
    monkeypatch.setitem(sys.modules, "__main__", daemon)
    importlib.reload(braidlog.spark)
    assert daemon.worker(None, True) == 1
