"""`braid produce` and `braid consume` against a running Braidlog."""

import json
import subprocess
import sys

import pytest
from confluent_kafka import Message
from tests.cli.running import braid
from typer.testing import CliRunner

from braidlog.cli.main import app
from braidlog.cli.records.templates import parse_template
from braidlog.clients.errors import CommandError, WrongUsage


def text(*arguments: str, given: str | None = None) -> tuple[str, str]:
    result = CliRunner().invoke(app, list(arguments), input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout, result.stderr


class FakeMessage:
    """A record as the client hands it over."""

    def __init__(self, key: bytes | None, value: bytes | None) -> None:
        self._key, self._value = key, value

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 42

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [("a", b"1"), ("b", None)]

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000


def shown(template: str, key: bytes | None = b"k", value: bytes | None = b"value", null: bytes = b"") -> bytes:
    message: Message = FakeMessage(key, value)  # type: ignore[assignment]
    return parse_template("--output", template, null)(message)


def test_keys_behind_any_delimiter_there_and_back(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "records", "-p", "1")
    sent = braid(bootstrap, "produce", "records", "-K", r"\t", "-H", "h=v", given="a\t1\nb\t2\nnokey\n")
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
    assert text("consume", "records", "-e", "-K", r"\x1f", "-D", "|", "-b", bootstrap)[0] == "a\x1f1|b\x1f2|\x1fnokey|"
    assert text("consume", "records", "-e", "-Z", "-f", r"%o:%k;", "-b", bootstrap)[0] == "0:a;1:b;2:NULL;"
    with pytest.raises(CommandError, match="no topic 'absent'"):
        braid(bootstrap, "consume", "absent")
    with pytest.raises(WrongUsage, match="--key is empty"):
        braid(bootstrap, "produce", "records", "-K", "", given="a\n")


def test_tombstones_times_and_partitions(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "timed", "-p", "2")
    for number in range(1, 5):
        braid(bootstrap, "produce", "timed", "-p", "1", "-K", ":", "-Z", "-T", f"{number}000", given=f"k{number}:\n")

    def offsets(*arguments: str) -> list[int]:
        shown, _ = text("consume", "timed", "-e", "-f", "%o ", "-b", bootstrap, *arguments)
        return [int(offset) for offset in shown.split()]

    assert (
        text("consume", "timed", "-e", "-f", "%k %S %T,", "-b", bootstrap)[0]
        == "k1 -1 1000,k2 -1 2000,k3 -1 3000,k4 -1 4000,"
    )
    assert offsets("-o", "2") == [2, 3]
    assert offsets("-o", "-1") == [3]
    assert offsets("-o", "s@2000", "-o", "e@4000") == [1, 2]
    assert offsets("-o", "s@9000") == []
    assert offsets("-o", "end") == []
    assert offsets("-p", "0") == []
    assert offsets("-p", "1", "-c", "1") == [0]
    stopped, said = text("consume", "timed", "-p", "1", "-o", "e@3000", "-f", "%o ", "-b", bootstrap)
    assert (stopped, said) == ("0 1 ", "2 records\n"), "a time to stop at ends the command by itself"
    assert text("consume", "timed", "-o", "e@9000", "-f", "%o ", "-b", bootstrap)[0] == "0 1 2 3 "
    assert (
        "timed/1 has the offsets [0, 4): starting at 4\n" in text("consume", "timed", "-eo", "99", "-b", bootstrap)[1]
    )
    with pytest.raises(CommandError, match="timed has no partition 7"):
        offsets("-p", "7")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["consume", "t", "-g", "g", "-o", "5"], "a group goes on where it is"),
        (["consume", "t", "-g", "g", "-p", "0"], "exclude each other"),
        (["consume", "t", "-g", ""], "--group is empty"),
        (["consume", "t", "-f", "%q"], "unknown field %q"),
        (["produce", "t", "-D", ""], "--delimiter is empty"),
        (["produce", "t", "-T", "noon"], "is not a time"),
        (["produce", "t", "-i", "json", "-K", ":"], "are for lines of text"),
    ],
)
def test_options_that_exclude_each_other(arguments: list[str], says: str) -> None:
    with pytest.raises(WrongUsage, match=says):
        text(*arguments, "-b", "127.0.0.1:1")


def test_a_copy_by_lines_of_json(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "first", "copy", "-p", "2")
    lines = [
        {"key": "a", "value": "1", "partition": 1, "timestamp_ms": 1000, "headers": [{"name": "h", "value": "x"}]},
        {"key_base64": "/w==", "value": None, "partition": 0, "timestamp_ms": 2000, "headers": []},
    ]
    braid(bootstrap, "produce", "first", "-i", "json", given="".join(f"{json.dumps(line)}\n" for line in lines))
    exported, _ = text("consume", "first", "-e", "--format", "json", "-b", bootstrap)
    braid(bootstrap, "produce", "copy", "-i", "json", given=exported)
    copied = sorted(braid(bootstrap, "consume", "copy", "-e"), key=lambda row: -row["partition"])
    assert [{name: value for name, value in row.items() if name not in {"topic", "offset"}} for row in copied] == lines


def test_what_came_before_a_wrong_line_is_written_and_told(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "partly", "-p", "1")
    given = '{"value": "1"}\n{"value": "2"}\nnonsense\n{"value": "4"}\n'
    result = CliRunner().invoke(app, ["produce", "partly", "-i", "json", "-b", bootstrap], input=given)
    assert result.stderr == "partly: 2 records before the error were written\n"
    assert "line 3 of the input is not JSON" in str(result.exception)
    assert [row["value"] for row in braid(bootstrap, "consume", "partly", "-e")] == ["1", "2"]


def test_text_output_is_values_on_stdout_and_the_rest_on_stderr(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "plain", "-p", "1")
    sent = text("produce", "plain", "--bootstrap", bootstrap, given="x\ny\n")
    assert (sent[0], "plain: 2 records" in sent[1]) == ("", True)
    assert text("consume", "plain", "--exit", "--bootstrap", bootstrap) == ("x\ny\n", "2 records\n")


def test_a_consumer_ends_when_its_reader_goes_though_nothing_comes(bootstrap: str) -> None:
    braid(bootstrap, "topic", "create", "quiet", "-p", "1")
    braid(bootstrap, "produce", "quiet", given="only\n")
    command = [sys.executable, "-m", "braidlog", "consume", "quiet", "--bootstrap", bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "only\n"
        process.stdout.close()
        assert process.wait(120) == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""
