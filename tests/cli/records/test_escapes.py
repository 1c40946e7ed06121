"""Backslash escapes in delimiters and templates."""

import pytest
from typer.testing import CliRunner

from braidlog.cli.main import app
from braidlog.cli.records.escapes import delimiter, unescape
from braidlog.clients.errors import WrongUsage


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("plain: ä", "plain: ä".encode()),
        (r"\t", b"\t"),
        (r"\n\r\0\\", b"\n\r\0\\"),
        (r"\x1f\xFF", b"\x1f\xff"),
        (r"a\\tb", rb"a\tb"),
        ("\t", b"\t"),
        ("\udcff", b"\xff"),
    ],
)
def test_escapes(text: str, data: bytes) -> None:
    assert unescape("-K", text) == data


@pytest.mark.parametrize("text", [r"\q", "\\", r"\x1", r"\xyz"])
def test_unknown_escapes_are_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="unknown escape"):
        unescape("-K", text)


def test_a_delimiter_cannot_be_empty() -> None:
    with pytest.raises(WrongUsage, match="--key is empty"):
        delimiter("--key", "")


def text(*arguments: str, given: str | None = None) -> tuple[str, str]:
    result = CliRunner().invoke(app, list(arguments), input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout, result.stderr
