"""The control plane, found through an agent."""

from pathlib import Path

import pytest
from tests.cluster import free_port
from tests.kafka.in_process import InProcessBraidlog

from braidlog.runtime.errors import InvalidSetting
from braidlog.spark import bootstrap
from braidlog.spark.bootstrap import control_address, with_control_address
from braidlog.spark.errors import JobError
from braidlog.spark.options import read_options


def test_an_agent_says_where_its_control_plane_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with InProcessBraidlog(tmp_path, control="control.example:9190") as braid:
        assert control_address(braid.bootstrap) == "control.example:9190"
        nobody = f"127.0.0.1:{free_port()}"
        options = read_options(
            {"subscribe": "a", "kafka.bootstrap.servers": f"{nobody}, {braid.bootstrap}"}, streaming=True
        )
        assert with_control_address(options).address.control == "control.example:9190"
        # Whoever does not know of it is a broker of Kafka.
        monkeypatch.setattr(bootstrap, "CONTROL_CONFIG", "no.such.config")
        with pytest.raises(JobError, match="is no agent of Braidlog"):
            control_address(braid.bootstrap)


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost"])
def test_an_agents_own_machine_is_where_the_agent_was_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(bootstrap, "_ask", lambda agent: f"{host}:9190")
    assert control_address("agent.example:9092") == "agent.example:9190"


def test_nobody_there() -> None:
    with pytest.raises(JobError, match="no agent answers at"):
        control_address(f"127.0.0.1:{free_port()}")
    with pytest.raises(InvalidSetting, match="has no port"):
        control_address("somewhere")


def test_a_named_control_plane_is_not_asked_for() -> None:
    options = read_options(
        {"subscribe": "a", "braidlog.control": "here:1", "kafka.bootstrap.servers": "nobody:9092"}, streaming=True
    )
    assert with_control_address(options) is options
