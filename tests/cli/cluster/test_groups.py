"""`braid group` against a running Braidlog."""

import contextlib
from typing import Any

import pytest
from confluent_kafka import Consumer
from tests.cli.running import braid
from typer.testing import CliRunner

from braidlog.cli.main import app
from braidlog.clients.errors import CommandError


def test_groups(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "shared", "-p", "1")
    braid(bootstrap, "produce", "shared", given="".join(f"{n}\n" for n in range(10)))
    assert len(braid(bootstrap, "consume", "shared", "--group", "g", "--count", "4")) == 4
    assert {"group": "g", "state": "empty", "lag": 6} in braid(bootstrap, "group", "list")
    assert braid(bootstrap, "group", "describe", "g")["lag"] == 6
    assert braid(bootstrap, "group", "describe", "g")["offsets"] == [
        {"topic": "shared", "partition": 0, "committed": 4, "high_watermark": 10, "lag": 6, "client": None}
    ]

    def moved(to: str, *more: str) -> Any:
        rows = braid(bootstrap, "group", "reset-offsets", "g", "--topic", "shared/0", "--to", to, *more)
        return rows[0]["before"], rows[0]["after"]

    assert moved("latest", "--dry-run") == (4, 10)
    assert moved("7") == (4, 7)
    assert moved("earliest") == (7, 0)
    assert moved("99") == (0, 10)
    assert moved("@1") == (10, 0)
    for wrong in ("somewhere", "@yesterday", "-1"):
        with pytest.raises(CommandError, match=r"is not a place|is not a time"):
            moved(wrong)
    with pytest.raises(CommandError, match="no partition '9'"):
        braid(bootstrap, "group", "reset-offsets", "g", "--topic", "shared/9", "--to", "1")
    assert braid(bootstrap, "group", "delete", "g") == [{"group": "g", "deleted": True}]
    assert "g" not in [row["group"] for row in braid(bootstrap, "group", "list")]
    with pytest.raises(CommandError, match="no group 'g'"):
        braid(bootstrap, "group", "describe", "g")


def test_an_offset_that_a_topic_does_not_have_is_told(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "short", "-p", "1")
    braid(bootstrap, "produce", "short", given="1\n2\n3\n")
    braid(bootstrap, "topic", "truncate", "short", "--before", "1")
    arguments = ["group", "reset-offsets", "far", "--topic", "short", "--bootstrap", bootstrap, "--to"]
    assert CliRunner().invoke(app, [*arguments, "99"]).stderr == "short/0: 99 is past the end, so 3 is taken\n"
    assert CliRunner().invoke(app, [*arguments, "0"]).stderr == "short/0: 0 is before the beginning, so 1 is taken\n"
    assert CliRunner().invoke(app, [*arguments, "3"]).stderr == ""


def test_the_lag_of_a_group_whose_topic_is_gone(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "brief", "-p", "1")
    braid(bootstrap, "group", "reset-offsets", "widow", "--topic", "brief", "--to", "latest")
    assert {"group": "widow", "state": "empty", "lag": 0} in braid(bootstrap, "group", "list")
    braid(bootstrap, "topic", "delete", "brief")
    assert braid(bootstrap, "group", "list")


def test_how_far_behind_a_group_is_that_has_committed_nothing(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "unread", "-p", "1")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "idle", "enable.auto.commit": False})
    with contextlib.closing(consumer):
        consumer.subscribe(["unread"])
        for _ in range(100):
            consumer.poll(0.1)
            if consumer.assignment():
                break
        described = braid(bootstrap, "group", "describe", "idle")
        assert (described["lag"], [row["lag"] for row in described["offsets"]]) == (None, [None])
        shown = CliRunner().invoke(app, ["group", "describe", "idle", "--bootstrap", bootstrap]).stdout
        assert shown.startswith("group idle: stable, 1 member, lag -\n")
