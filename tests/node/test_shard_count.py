"""How many shards an agent has when nobody says, and where it can have only one."""

import pytest

from braidlog.node.assembly import shard_count
from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.settings import AgentSettings


def settings(store_url: str, shards: int) -> AgentSettings:
    return AgentSettings.model_validate({"store_url": store_url, "shards": shards})


def test_what_is_asked_for_counts_and_else_the_default() -> None:
    assert shard_count(settings("file:///data", 3), 8) == 3
    assert shard_count(settings("file:///data", 0), 8) == 8


def test_a_store_in_memory_belongs_to_one_process() -> None:
    """Each shard would have one of its own, and no shard what the others have stored."""
    assert shard_count(settings("memory://", 0), 8) == 1
    assert shard_count(settings("memory://", 1), 8) == 1
    with pytest.raises(InvalidSetting, match="cannot share memory://"):
        shard_count(settings("memory://", 2), 8)
