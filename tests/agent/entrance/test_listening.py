"""Listeners that strangers can reach are warned of, and certificates that stand for nobody do not come in."""

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import FakeClock

from braidlog.agent.entrance.entrance import Entrance
from braidlog.agent.entrance.listening import Listening
from braidlog.cli.tools.certificates import write_certificate
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.quantities import Address
from braidlog.runtime.security_settings import Listener
from braidlog.runtime.settings import AgentSettings
from braidlog.security.certificates import PrincipalRules
from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.sim.virtual.network import Network

LOCAL, BEYOND = "127.0.0.1:9092", "10.0.0.5:9092"


@pytest.mark.parametrize(
    ("listen", "changes", "warned"),
    [
        (LOCAL, {}, []),
        (BEYOND, {}, ["PLAINTEXT"]),
        (BEYOND, {"security_protocol": "SSL"}, ["SSL"]),
        (BEYOND, {"security_protocol": "SSL", "ssl_client_auth": "requested"}, ["SSL"]),
        (BEYOND, {"security_protocol": "SSL", "ssl_client_auth": "required"}, []),
        (BEYOND, {"security_protocol": "SASL_SSL"}, []),
        (BEYOND, {"security_protocol": "SASL_SSL", "listeners": "PLAINTEXT://10.0.0.5:9094"}, ["PLAINTEXT"]),
    ],
)
def test_a_port_for_everybody_beyond_loopback_is_warned_of(
    tmp_path: Path, listen: str, changes: dict[str, str], warned: list[str], logs: list[MutableMapping[str, Any]]
) -> None:
    files = {}
    if "security_protocol" in changes:
        made = write_certificate(tmp_path, ["localhost"])
        files = {"ssl_certificate_file": str(made["certificate"]), "ssl_key_file": str(made["key"])}
        files["ssl_ca_file"] = files["ssl_certificate_file"]
    settings = AgentSettings.model_validate({"store_url": "memory://a", "listen": listen, **files, **changes})
    loop = VirtualLoop(SeededEntropy(1))  # type: ignore[abstract]
    loop.network = Network(loop, SeededEntropy(1))
    listening = Listening(settings, FakeClock())
    loop.run_until_complete(listening.open(lambda _entrance: None))  # type: ignore[arg-type, return-value]
    assert [line["listener"] for line in logs if line["log_level"] == "warning"] == warned


def test_a_certificate_that_stands_for_nobody_is_not_taken_for_none() -> None:
    address = Address("127.0.0.1", 9092)
    entrance = Entrance(Listener("SSL", "SSL", address, address), PrincipalRules("RULE:^OU=(.*)$/$1/"))
    assert entrance.user_of(None) == "ANONYMOUS"
    assert entrance.user_of({"subject": ((("commonName", "alice"),),)}) is None
