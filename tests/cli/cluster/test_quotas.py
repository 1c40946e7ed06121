"""`braid quota` against a running Braidlog."""

from typing import Any

import pytest
from tests.cli.running import braid
from typer.testing import CliRunner

from braidlog.cli.main import app
from braidlog.clients.errors import CommandError, WrongUsage


def text(bootstrap: str, *arguments: str) -> str:
    return CliRunner().invoke(app, [*arguments, "--bootstrap", bootstrap]).stdout


def test_quotas(bootstrap: str) -> None:
    def quotas(*whose: str) -> Any:
        rows = braid(bootstrap, "quota", "describe", *whose)
        return [(row["user"], row["client_id"], row["quota"], row["value"]) for row in rows]

    loader = ["--client-id", "loader"]
    assert quotas() == []
    braid(bootstrap, "quota", "set", *loader, "producer_byte_rate=10MiB/s", "consumer_byte_rate=5MB")
    braid(bootstrap, "quota", "set", "--user", "<default>", "producer_byte_rate=1000")
    assert quotas() == [
        (None, "loader", "consumer_byte_rate", 5_000_000.0),
        (None, "loader", "producer_byte_rate", 10.0 * 1024**2),
        ("<default>", None, "producer_byte_rate", 1000.0),
    ]
    assert "10MiB/s" in text(bootstrap, "quota", "describe")
    assert len(quotas(*loader)) == 2
    with pytest.raises(CommandError, match="user u has no quota"):
        braid(bootstrap, "quota", "remove", "--user", "u")
    assert braid(bootstrap, "quota", "remove", *loader, "consumer_byte_rate")["removed"] == ["consumer_byte_rate"]
    with pytest.raises(CommandError, match="client-id loader has no quota consumer_byte_rate"):
        braid(bootstrap, "quota", "remove", *loader, "consumer_byte_rate")
    braid(bootstrap, "quota", "remove", *loader)
    braid(bootstrap, "quota", "remove", "--user", "<default>")
    assert quotas() == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["set", "producer_byte_rate=1MiB"], "whose quota"),
        (["set", "-i", "c", "producer_byte_rate"], "no equals sign"),
        (["set", "-i", "c", "producer_byte_rate=fast"], "is not a rate"),
        (["set", "-i", "c", "producer_bite_rate=1"], "is not a quota"),
        (["remove"], "whose quota"),
        (["remove", "-i", "c", "nothing"], "is not a quota"),
    ],
)
def test_quotas_that_cannot_be_meant(arguments: list[str], says: str) -> None:
    with pytest.raises(WrongUsage, match=says):
        braid("127.0.0.1:1", "quota", *arguments)
