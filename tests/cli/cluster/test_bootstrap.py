"""Commands that ask the control plane find it through any agent."""

import pytest
from tests.cli.running import braid

from braidlog.clients.agent_facts import find_agent
from braidlog.clients.control_client import find_control
from braidlog.clients.errors import CommandError


def test_control_plane_is_found_through_an_agent(bootstrap: str) -> None:
    facts = find_agent(bootstrap)
    assert facts.control == find_control(None, bootstrap)
    assert facts.store_url.startswith("file://")
    assert find_control("10.0.0.1:1", bootstrap) == "10.0.0.1:1"


def test_commands_of_the_control_plane_take_bootstrap(bootstrap: str) -> None:
    assert isinstance(braid(bootstrap, "jobs"), list)
    assert len(braid(bootstrap, "cluster", "status")["agents"]) == 1
    assert "open_sequences" in braid(bootstrap, "lightning", "status")
    found = braid(bootstrap, "ripcord", "status")
    assert found["control"]["control_state"] == "present"
    braid(bootstrap, "topic", "create", "compact-by-bootstrap", "--config", "cleanup.policy=compact")
    assert braid(bootstrap, "compact", "compact-by-bootstrap", "--now", "--no-wait") == []


def test_an_agent_that_is_not_there_is_named() -> None:
    with pytest.raises(CommandError, match=r"no agent answers at 127\.0\.0\.1:1:"):
        find_control(None, "127.0.0.1:1")
