"""`braid cluster status` against a Braidlog that runs."""

import json
from collections.abc import Iterator

import pytest
from tests.cli.running import started
from typer.testing import CliRunner

from braidlog.cli.main import app
from braidlog.clients.cluster_status import cluster_status, cluster_troubles
from braidlog.control.interface import AgentInfo, AgentStatus, ClusterDescription, CopyStatus, JournalStatistics

_JOURNALS = JournalStatistics(*[0] * 15)


def _description(*lags: int, copy: CopyStatus | None = None) -> ClusterDescription:
    agents = [
        AgentStatus(AgentInfo(number, f"i{number}", "host", 9092, "a"), 100, lag) for number, lag in enumerate(lags)
    ]
    return ClusterDescription("id", "s3://b", "me", 0, 1, 5, agents, [], {}, _JOURNALS, copy or CopyStatus("itself", 0))


def test_a_cluster_is_healthy_if_all_agents_follow_and_the_copy_is_young() -> None:
    assert cluster_troubles(_description(0, 3)) == []
    assert cluster_status(_description(0, 3), 0)["agents_by_zone"] == {"a": 2}


def test_troubles_are_told() -> None:
    assert cluster_troubles(_description()) == ["no agent is registered"]
    assert "does not follow" in cluster_troubles(_description(-1))[0]
    assert "behind" in cluster_troubles(_description(1_000_000))[0]
    assert "s old" in cluster_troubles(_description(0, copy=CopyStatus("shipped", 900_000)))[0]
    assert "no room" in cluster_troubles(_description(0, copy=CopyStatus("shipped", 0, 1, "no room")))[0]


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("status")
    arguments = ("--listen", "127.0.0.1:0", "--metadata", f"sqlite://{folder}/meta.db", "--zone", "here")
    with started("up", folder, *arguments, "-s", "control_listen=127.0.0.1:0", "-s", "pipeline=off") as process:
        yield process.addresses["control"]


@pytest.mark.slow
def test_a_running_cluster_becomes_healthy(control: str) -> None:
    runner = CliRunner()
    result = runner.invoke(app, ["cluster", "status", "--control", control, "--exit-when-healthy", "--format", "json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["healthy"]
    assert found["agents_by_zone"] == {"here": 1}
    assert found["active"].startswith("the control plane at")
    text = runner.invoke(app, ["cluster", "status", "--control", control])
    assert "here: 1" in text.stdout
