"""What a shard is told when it starts."""

import json

import pytest

from braidlog.node.shards import shard_settings
from braidlog.runtime.settings import AgentSettings, load_settings


@pytest.mark.parametrize("control", ["127.0.0.1:9190", "127.0.0.1:9190,127.0.0.1:9290"])
def test_settings_arrive_at_a_shard_as_they_were(control: str) -> None:
    given = {"control": control, "listen": "127.0.0.1:9092", "store_url": "file:///srv/log"}
    settings = load_settings(given, config=None, environ={}).agent
    sent = json.loads(json.dumps(shard_settings(settings, 1, 2, port=9093)))
    assert AgentSettings(**sent).control == settings.control
    assert str(AgentSettings(**sent).listen) == "127.0.0.1:9093"
