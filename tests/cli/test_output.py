"""Tables, fields and formats of the output."""

import pytest

from braidlog.cli.output import OutputFormat, asked_format, emit_fields, format_table


def test_tables_are_aligned_and_plain() -> None:
    assert format_table(["name", "count"], [["a", 5], ["long", None]]) == "NAME  COUNT\na         5\nlong      -"
    assert format_table(["name"], []) == "NAME"
    assert format_table(["name", "n"], [[None, 1]]) == "NAME  N\n-     1"


def test_fields(capsys: pytest.CaptureFixture[str]) -> None:
    emit_fields(OutputFormat.TEXT, {"a_b": True, "c": ["x", "y"]})
    assert capsys.readouterr().out == "a b  yes\nc    x,y\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--format", "json"], OutputFormat.JSON),
        (["--format=json"], OutputFormat.JSON),
        (["--format", "text"], OutputFormat.TEXT),
        (["--format"], OutputFormat.TEXT),
        (["json"], OutputFormat.TEXT),
    ],
)
def test_the_format_that_was_asked_for(arguments: list[str], expected: OutputFormat) -> None:
    assert asked_format(["topic", *arguments]) is expected
