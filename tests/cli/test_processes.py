"""The commands against real processes: what a person does on the first day."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from typer.testing import CliRunner

from braidlog.cli.children import BraidProcess
from braidlog.cli.errors import CommandError, explain
from braidlog.cli.main import app
from braidlog.objects.open import open_store
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy


@contextlib.contextmanager
def started(name: str, folder: Path, *arguments: str) -> Iterator[BraidProcess]:
    where = ["--metrics", "127.0.0.1:0", "--store", f"file://{folder}/store"]
    with BraidProcess(name, [name, *where, *arguments], folder, SystemClock()) as process:
        yield process


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("up")
    metadata = f"sqlite://{folder}/new/folder/meta.db"
    with started("up", folder, "--listen", "127.0.0.1:0", "--metadata", metadata, "-s", "num.partitions=3") as process:
        yield process.addresses["kafka"]


def braid(bootstrap: str, *arguments: str, given: str | None = None) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--bootstrap", bootstrap, "--format", "json"], input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return lines[0] if len(lines) == 1 else lines


def test_topics(bootstrap: str) -> None:
    assert braid(bootstrap, "topic", "create", "t1", "t2", "-p", "2", "--config", "retention.ms=1000") == [
        {"topic": "t1", "created": True},
        {"topic": "t2", "created": True},
    ]
    with pytest.raises(Exception, match="exists") as caught:
        braid(bootstrap, "topic", "create", "t1")
    assert "--if-not-exists" in explain(caught.value)[1]  # type: ignore[arg-type]
    assert braid(bootstrap, "topic", "create", "t1", "--if-not-exists") == [{"topic": "t1", "created": False}]
    assert {"topic": "t1", "partitions": 2} in braid(bootstrap, "topic", "list")

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
    def outcome(*arguments: str) -> tuple[int, Any, str]:
        command = [sys.executable, "-m", "braidlog.cli.main", *arguments, "--bootstrap", bootstrap]
        done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=False)
        return done.returncode, [tuple(row.values()) for row in json.loads(done.stdout)], done.stderr

    braid(bootstrap, "topic", "create", "old", "-p", "1")
    code, rows, said = outcome("topic", "create", "old", "new", "bad/name")
    assert (code, [row[:2] for row in rows]) == (1, [("old", False), ("new", True), ("bad/name", False)])
    assert said.count("error: ") == 2
    assert "'old'" in said
    assert "'bad/name'" in said

    braid(bootstrap, "group", "reset-offsets", "brandnew", "--topic", "new", "--to", "latest")
    code, rows, said = outcome("group", "delete", "brandnew", "nosuch")
    assert (code, rows) == (1, [("brandnew", True), ("nosuch", False, "there is no group 'nosuch'")])
    assert said.startswith("error: there is no group 'nosuch'\n")

    code, rows, said = outcome("topic", "delete", "nope", "new", "nada", "new")
    gone = [(name, False, f"there is no topic '{name}'") for name in ("nope", "nada")]
    assert (code, rows) == (1, [gone[0], ("new", True), gone[1]])
    assert [line for line in said.splitlines() if line.startswith("error: ")] == [f"error: {row[2]}" for row in gone]

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


def test_records_there_and_back(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "records", "-p", "1")
    sent = braid(bootstrap, "produce", "records", "--key", ":", "-H", "h=v", given="a:1\nb:2\nnokey\n")
    assert sent["records"] == 3
    assert sent["partitions"] == [{"partition": 0, "first_offset": 0, "end_offset": 3}]
    got = braid(bootstrap, "consume", "records", "--exit")
    assert [(row["key"], row["value"], row["offset"]) for row in got] == [
        ("a", "1", 0),
        ("b", "2", 1),
        (None, "nokey", 2),
    ]
    assert got[0]["headers"] == [{"name": "h", "value": "v"}]
    assert braid(bootstrap, "consume", "records", "--count", "1")["value"] == "1"
    with pytest.raises(CommandError, match="no topic 'absent'"):
        braid(bootstrap, "consume", "absent")


def test_text_output_is_values_on_stdout_and_the_rest_on_stderr(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "plain", "-p", "1")
    runner = CliRunner()
    sent = runner.invoke(app, ["produce", "plain", "--bootstrap", bootstrap], input="x\ny\n")
    assert (sent.stdout, "plain: 2 records" in sent.stderr) == ("", True)
    got = runner.invoke(app, ["consume", "plain", "--exit", "--bootstrap", bootstrap])
    assert (got.stdout, got.stderr) == ("x\ny\n", "2 records\n")


def test_groups(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "shared", "-p", "1")
    braid(bootstrap, "produce", "shared", given="".join(f"{n}\n" for n in range(10)))
    assert len(braid(bootstrap, "consume", "shared", "--group", "g", "--count", "4")) == 4
    assert {"group": "g", "state": "empty"} in braid(bootstrap, "group", "list")
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
    with pytest.raises(CommandError, match="not a place"):
        moved("somewhere")
    with pytest.raises(CommandError, match="no partition '9'"):
        braid(bootstrap, "group", "reset-offsets", "g", "--topic", "shared/9", "--to", "1")
    assert braid(bootstrap, "group", "delete", "g") == [{"group": "g", "deleted": True}]
    assert "g" not in [row["group"] for row in braid(bootstrap, "group", "list")]
    with pytest.raises(CommandError, match="no group 'g'"):
        braid(bootstrap, "group", "describe", "g")


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


def fencing_epoch(database: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT epoch FROM fencing").fetchone()[0])


def test_stopping_is_clean_and_a_port_in_use_is_explained(tmp_path: Path) -> None:
    database = tmp_path / "meta.db"
    metadata = ["--metadata", f"sqlite://{database}"]
    with started("control", tmp_path, "--listen", "127.0.0.1:0", *metadata) as control:
        address = control.addresses["control"]
        for name in ("control", "up"):
            command = [name, "--listen", address, "--store", "memory://", *metadata, "--metrics", "off"]
            done = subprocess.run(
                [sys.executable, "-m", "braidlog.cli.main", *command], capture_output=True, text=True, check=False
            )
            assert done.returncode == 1
            assert f"error: cannot listen on {address}" in done.stderr
            assert "--listen" in done.stderr
        assert fencing_epoch(database) == 1, "what could not start has taken the metadata from what runs"
        assert control.metrics()['braidlog_build_info{version="0.1.0"}'] == 1
        ready = tmp_path / "control.ready"
        assert json.loads(ready.read_text())["control"] == address
        assert control.stop() == 0
        assert not ready.exists()
        assert control.last_log_line() == "braid control: stopped"


@pytest.mark.slow
def test_a_second_control_plane_ends_the_first(tmp_path: Path) -> None:
    metadata = ["--listen", "127.0.0.1:0", "--metadata", f"sqlite://{tmp_path}/meta.db"]
    settings = ["-s", "write_epoch_interval_s=1s"]  # the first notices when it next writes
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    with (
        started("control", tmp_path / "first", *metadata, *settings) as first,
        started("control", tmp_path / "second", *metadata),
    ):
        assert first.wait() == 1
        assert "taken over" in first.last_log_line()


@pytest.mark.slow
def test_the_demo_loses_and_doubles_nothing() -> None:
    command = [sys.executable, "-m", "braidlog.cli.main", "demo", "--quick", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    account = json.loads(done.stdout)
    assert account["ok"]
    assert account["records_in"] == account["records_out"] == 30_000
    assert account["missing"] == account["duplicates"] == 0
    assert account["puts"] >= account["objects"] > 0


@pytest.mark.slow
def test_doctor_is_content_with_s3(seaweed: str, tmp_path: Path) -> None:
    metadata = f"metadata_url=sqlite://{tmp_path}/meta.db"
    arguments = ["doctor", "--format", "json", "-s", f"store_url={seaweed}", "-s", metadata, "-s", "listen=127.0.0.1:0"]
    findings = json.loads(CliRunner().invoke(app, arguments).stdout)
    unhappy = {check["check"]: check["detail"] for check in findings["checks"] if not check["ok"]}
    assert set(unhappy) <= {"metadata durable"}, unhappy  # where temporary folders are in memory


@pytest.mark.slow
async def test_records_and_their_object_on_s3(seaweed: str, tmp_path: Path) -> None:
    arguments = ["up", "--listen", "127.0.0.1:0", "--metrics", "off", "--store", seaweed]
    arguments += ["--metadata", f"sqlite://{tmp_path}/meta.db"]
    with BraidProcess("up", arguments, tmp_path, SystemClock()) as process:
        braid(process.addresses["kafka"], "produce", "on-s3", given="one\ntwo\n")
        assert len(braid(process.addresses["kafka"], "consume", "on-s3", "--exit")) == 2
    store = open_store(seaweed, clock=SystemClock(), entropy=SystemEntropy())
    keys = [found.key for found in (await store.list("data/")).objects]
    await store.close()
    bucket, _, options = seaweed.partition("?")
    url = f"{bucket.rstrip('/')}/{keys[0]}?{options}"
    command = [sys.executable, "-m", "braidlog.cli.main", "inspect", url, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["record_count"] in {1, 2}
