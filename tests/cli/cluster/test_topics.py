"""`braid topic` against a running Braidlog."""

import json
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka import KafkaException
from tests.cli.running import braid
from typer.testing import CliRunner

from braidlog.cli.errors import explain
from braidlog.cli.main import app
from braidlog.clients.errors import CommandError, WrongUsage
from braidlog.runtime.quantities import format_bytes


def test_topics(bootstrap: str) -> None:
    assert braid(bootstrap, "topic", "create", "t1", "t2", "-p", "2", "--config", "retention.ms=1000") == [
        {"topic": "t1", "created": True},
        {"topic": "t2", "created": True},
    ]
    with pytest.raises(Exception, match="exists") as caught:
        braid(bootstrap, "topic", "create", "t1")
    assert "--if-not-exists" in explain(caught.value)[1]  # type: ignore[arg-type]
    assert braid(bootstrap, "topic", "create", "t1", "--if-not-exists") == [{"topic": "t1", "created": False}]
    assert {"topic": "t1", "partitions": 2, "bytes": 0} in braid(bootstrap, "topic", "list")

    described = braid(bootstrap, "topic", "describe", "t1")
    assert [row["partition"] for row in described["partitions"]] == [0, 1]
    assert [(row["config"], row["value"]) for row in described["configs"]] == [("retention.ms", "1000")]

    braid(bootstrap, "topic", "alter", "t1", "--set", "retention.ms=2000", "--partitions", "4")
    described = braid(bootstrap, "topic", "describe", "t1")
    assert len(described["partitions"]) == 4
    assert described["configs"][0]["value"] == "2000"
    braid(bootstrap, "topic", "alter", "t1", "--unset", "retention.ms")
    assert braid(bootstrap, "topic", "describe", "t1")["configs"] == []
    assert len(braid(bootstrap, "topic", "describe", "t1", "--all")["configs"]) > 20

    assert braid(bootstrap, "topic", "delete", "t1", "t2") == [
        {"topic": "t1", "deleted": True},
        {"topic": "t2", "deleted": True},
    ]
    with pytest.raises(CommandError, match="no topic 't1'"):
        braid(bootstrap, "topic", "delete", "t1")
    assert braid(bootstrap, "topic", "delete", "t1", "--if-exists") == [{"topic": "t1", "deleted": False}]
    with pytest.raises(CommandError, match="no topic 't1'"):
        braid(bootstrap, "topic", "describe", "t1")


def test_where_some_fail_all_are_told_of(bootstrap: str) -> None:
    def outcome(*arguments: str) -> tuple[int, Any, list[str]]:
        command = [sys.executable, "-m", "braidlog", *arguments, "--bootstrap", bootstrap]
        done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=False)
        errors = [json.loads(line)["error"] for line in done.stderr.splitlines()]
        return done.returncode, [tuple(row.values()) for row in json.loads(done.stdout)], errors

    braid(bootstrap, "topic", "create", "old", "-p", "1")
    code, rows, said = outcome("topic", "create", "old", "new", "bad/name")
    assert (code, [row[:2] for row in rows]) == (1, [("old", False), ("new", True), ("bad/name", False)])
    assert ["'old'" in said[0], "'bad/name'" in said[1]] == [True, True]

    braid(bootstrap, "group", "reset-offsets", "brandnew", "--topic", "new", "--to", "latest")
    code, rows, said = outcome("group", "delete", "brandnew", "nosuch")
    assert (code, rows) == (1, [("brandnew", True), ("nosuch", False, "there is no group 'nosuch'")])
    assert said == ["there is no group 'nosuch'"]

    code, rows, said = outcome("topic", "delete", "nope", "new", "nada", "new")
    gone = [(name, False, f"there is no topic '{name}'") for name in ("nope", "nada")]
    assert (code, rows) == (1, [gone[0], ("new", True), gone[1]])
    assert said == [row[2] for row in gone]

    result = CliRunner().invoke(app, ["topic", "delete", "nope", "old", "--bootstrap", bootstrap])
    assert (result.stderr, str(result.exception)) == ("old: deleted\n", "there is no topic 'nope'")


@pytest.mark.parametrize("change", [["--set", "retention.ms=5", "-p", "2"], ["--set", "retention.ms=x", "-p", "5"]])
def test_where_one_change_is_refused_nothing_is_changed(bootstrap: str, change: list[str]) -> None:
    braid(bootstrap, "topic", "create", "kept", "-p", "3", "--if-not-exists")
    with pytest.raises(KafkaException):
        braid(bootstrap, "topic", "alter", "kept", *change)
    described = braid(bootstrap, "topic", "describe", "kept")
    assert (len(described["partitions"]), described["configs"]) == (3, [])


def test_partitions_by_default_are_those_of_the_settings(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "by-default")
    assert len(braid(bootstrap, "topic", "describe", "by-default")["partitions"]) == 3


def text(bootstrap: str, *arguments: str) -> str:
    return CliRunner().invoke(app, [*arguments, "--bootstrap", bootstrap]).stdout


def test_topics_are_listed_with_their_sizes(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "sized", "-p", "2")
    braid(bootstrap, "produce", "sized", given=f"{'x' * 2000}\n" * 3)
    held = {row["topic"]: row["bytes"] for row in braid(bootstrap, "topic", "list")}
    assert 6000 < held["sized"] < 7000
    row = next(line for line in text(bootstrap, "topic", "list").splitlines() if line.startswith("sized"))
    assert row.split()[1:] == ["2", format_bytes(held["sized"])]


def test_truncation(bootstrap: str) -> None:
    def truncated(*arguments: str) -> Any:
        rows = braid(bootstrap, "topic", "truncate", *arguments)
        return [(row["partition"], row["before"], row["after"], row["deleted"]) for row in rows]

    braid(bootstrap, "topic", "create", "long", "-p", "2")
    for partition in ("0", "1"):
        braid(bootstrap, "produce", "long", "-p", partition, given="1\n2\n3\n4\n")
    assert truncated("long/0", "--before", "3", "--dry-run") == [(0, 0, 3, 3)]
    assert truncated("long/0", "--before", "3") == [(0, 0, 3, 3)]
    assert [row["value"] for row in braid(bootstrap, "consume", "long", "-e", "-p", "0", "-p", "1")].count("4") == 2
    assert truncated("long", "--before", "1") == [(0, 3, 3, 0), (1, 0, 1, 1)]
    with pytest.raises(CommandError, match="long/0 ends at 4, so nothing was deleted"):
        truncated("long", "--before", "5")
    assert truncated("long", "--all") == [(0, 3, 4, 1), (1, 1, 4, 3)]
    with pytest.raises(CommandError, match="no partition '7'"):
        truncated("long/7", "--all")
    for wrong in (["long"], ["long", "--all", "--before", "1"]):
        with pytest.raises(WrongUsage, match="which records"):
            truncated(*wrong)
