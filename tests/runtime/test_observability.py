"""Logs, metrics and the HTTP server that shows them."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from prometheus_client import Counter
from tests.fakes import FakeClock

from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.http import serve_http
from braidlog.runtime.logs import configure_logs, use_colour
from braidlog.runtime.metrics import Metrics
from braidlog.runtime.quantities import Address


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


NOON_MS = 43_200_000


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_off_a_terminal() -> None:
    stream = io.StringIO()
    configure_logs(stream=stream, clock=FakeClock(NOON_MS))
    structlog.get_logger(node_id=3).info("ready", port=9092)
    assert json.loads(stream.getvalue()) == {
        "event": "ready",
        "level": "info",
        "node_id": 3,
        "port": 9092,
        "timestamp": "1970-01-01T12:00:00.000+00:00",
    }


@pytest.mark.parametrize("format", ["human", "json"])
def test_a_traceback_does_not_show_what_clients_sent(format: str) -> None:  # noqa: A002 - named like the setting
    def fail(payload: bytes) -> None:
        copy = payload
        raise TypeError(f"a type of {type(copy)}")

    stream = io.StringIO()
    configure_logs(format=format, stream=stream, clock=FakeClock(NOON_MS))
    try:
        fail(b"confident" + b"ial")
    except TypeError as error:
        structlog.get_logger().error("request failed", exc_info=error)
    assert "TypeError" in stream.getvalue()
    assert "confidential" not in stream.getvalue()


def test_levels_hold_for_us_and_for_libraries() -> None:
    stream = io.StringIO()
    configure_logs("warning", stream=stream)
    structlog.get_logger().info("quiet")
    logging.getLogger("library").info("quiet")
    assert stream.getvalue() == ""
    logging.getLogger("library").error("loud")
    assert json.loads(stream.getvalue())["event"] == "loud"


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_human_on_a_terminal_coloured_unless_refused(environ: dict[str, str], coloured: bool) -> None:
    stream = Terminal()
    configure_logs(stream=stream, environ=environ)
    structlog.get_logger().info("ready")
    assert "ready" in stream.getvalue()
    assert ("\x1b[" in stream.getvalue()) is coloured
    assert use_colour(stream, environ) is coloured


def test_exceptions_stay_on_one_json_line() -> None:
    stream = io.StringIO()
    configure_logs(stream=stream)
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger().exception("failed")
    assert "ValueError: broken" in json.loads(stream.getvalue())["exception"]


def test_each_metrics_object_has_its_own_figures() -> None:
    one, other = Metrics(), Metrics()
    for metrics, count in ((one, 5), (other, 0)):
        Counter("braidlog_puts_total", "Puts.", registry=metrics.registry).inc(count)
    assert "braidlog_puts_total 5.0\n" in one.render().decode()
    assert "braidlog_puts_total 0.0\n" in other.render().decode()


def test_process_figures_are_there_when_asked_for() -> None:
    text = Metrics(process=True).render().decode()
    assert "process_cpu_seconds_total" in text
    assert "braidlog_build_info{" in text
    assert "process_" not in Metrics().render().decode()


async def ask(address: Address, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


async def test_http_shows_figures_health_and_readiness() -> None:
    metrics = Metrics()
    Counter("braidlog_produced_bytes_total", "Bytes.", registry=metrics.registry).inc(7)
    trouble: list[str] = ["still loading"]
    async with serve_http(Address("127.0.0.1", 0), metrics, ready=lambda: trouble[0] if trouble else None) as address:
        assert address.port != 0
        status, body = await ask(address, "/metrics")
        assert status == 200
        assert "braidlog_produced_bytes_total 7.0" in body
        assert await ask(address, "/healthz") == (200, "ok\n")
        assert await ask(address, "/readyz") == (503, "still loading\n")
        trouble.clear()
        assert await ask(address, "/readyz") == (200, "ok\n")
        assert (await ask(address, "/nowhere"))[0] == 404

        with pytest.raises(InvalidSetting, match="cannot serve metrics on"):
            async with serve_http(address, Metrics()):
                pass
