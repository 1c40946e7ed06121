"""Coroutines run for ordinary threads, and connections that tasks of one process share."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator

import pytest
from tests.cluster import wait_until

from braidlog.spark.event_loop import KEPT_MAX, PerProcess, event_loop_thread


class Connection:
    def __init__(self, key: str) -> None:
        self.key = key
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


async def thread_name() -> str:
    return threading.current_thread().name


async def fail() -> None:
    raise ValueError("it failed")


def test_coroutines_run_in_the_one_thread_of_the_process() -> None:
    loop = event_loop_thread()
    assert loop is event_loop_thread()
    assert loop.run(thread_name()) == loop.start(thread_name()).result(60) == "braidlog"


def test_errors_reach_the_caller() -> None:
    with pytest.raises(ValueError, match="it failed"):
        event_loop_thread().run(fail())


def test_a_generator_is_closed_when_its_caller_stops_early() -> None:
    closed: list[bool] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in range(10):
                await asyncio.sleep(0)
                yield number
        finally:
            closed.append(True)

    loop = event_loop_thread()
    assert list(loop.iterate(numbers())) == list(range(10))
    for number in (taken := loop.iterate(numbers())):
        if number == 3:
            break
    taken.close()  # type: ignore[attr-defined]
    assert closed == [True, True]


def test_connections_are_shared_and_the_oldest_are_closed() -> None:
    connections: PerProcess[str, Connection] = PerProcess(Connection)
    first = connections.get("0")
    assert connections.get("0") is first
    others = [connections.get(str(number)) for number in range(1, KEPT_MAX + 1)]
    wait_until(lambda: first.is_closed)
    assert not any(each.is_closed for each in others)
    assert connections.get("0") is not first


def test_a_forked_process_uses_nothing_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    connections: PerProcess[str, Connection] = PerProcess(Connection)
    parents = connections.get("0")
    loop = event_loop_thread()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert connections.get("0") is not parents
    assert event_loop_thread() is not loop
