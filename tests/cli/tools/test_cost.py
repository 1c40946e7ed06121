"""`braid cost`: what people see of the model."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from braidlog.cli.main import app
from braidlog.clients.errors import CommandError


def cost(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["cost", "shuffle", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_the_published_bill() -> None:
    figures = json.loads(
        cost("--rate", "1GiB/s", "--batch", "16MiB", "--zones", "3", "--interval", "0", "--format", "json")
    )
    blob, kafka, native = figures["usd_per_hour"]
    assert blob["total_usd"] == pytest.approx(4.46, abs=0.01)
    assert blob["requests_usd"] + blob["storage_usd"] == pytest.approx(1.40, abs=0.005)
    assert kafka["total_usd"] == pytest.approx(192)
    assert kafka["times"] == pytest.approx(43, abs=0.1)
    assert native["total_usd"] == pytest.approx(48)
    assert figures["rates"]["puts_per_s"] == pytest.approx(64 * 1.03 / 0.975)
    assert figures["prices_as_of"]


def test_the_table() -> None:
    text = cost("--machine", "none", "--replicas", "2")
    assert "kafka, 2 replicas" in text
    assert "1.40" in text
    assert "latency bound" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rate", "fast"],
        ["--batch", "16 bananas"],
        ["--interval", "soon"],
        ["--price", "cheap"],
        ["--machine", "abacus"],
        ["--fill", "2"],
        ["--rate", "0MiB/s"],
    ],
)
def test_nonsense_is_explained(arguments: list[str]) -> None:
    with pytest.raises(CommandError) as caught:
        cost(*arguments)
    assert caught.value.help
