"""`braid cost`: what people see of the model."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from braidlog.cli.main import app
from braidlog.clients.errors import CommandError
from braidlog.objects.keys import shuffle_usage_key
from braidlog.spark.shuffle.service.usage import ShuffleUsage, encode_usage


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


def test_gets_are_counted_as_nodes_measured_them(tmp_path: Path) -> None:
    usage = ShuffleUsage(puts=200, put_bytes=2000, gets=150, get_bytes=1500, reduce_tasks=20, reduce_tasks_in_zone=19)
    for name in ("0123456789abcdef", "123456789abcdef0"):
        path = tmp_path / shuffle_usage_key("orders", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_usage(usage))
    where = ["--store", f"file://{tmp_path}", "--job", "orders"]
    figures = json.loads(cost(*where, "--format", "json"))
    assert figures["measured"]["gets"] == 300
    assert figures["measured"]["gets_per_put"] == 0.75
    assert figures["rates"]["gets_per_s"] == pytest.approx(0.75 * figures["rates"]["puts_per_s"])
    assert "300 GETs for 400 PUTs; 95% of 40 reduce tasks in their zone" in cost(*where)


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
        ["--job", "orders"],
        ["--store", "memory://empty", "--job", "orders"],
    ],
)
def test_nonsense_is_explained(arguments: list[str]) -> None:
    with pytest.raises(CommandError) as caught:
        cost(*arguments)
    assert caught.value.help
