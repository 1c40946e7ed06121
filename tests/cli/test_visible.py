"""Data on a terminal."""

import json

import pytest

from braidlog.cli.output import format_table
from braidlog.cli.visible import visible_bytes, visible_json, visible_text

HOSTILE = "\x1b[2J\x1b]0;pwned\x07\x9b31m\u202egnp\ufeff\x7f\r"


def test_control_characters_are_shown_by_their_number() -> None:
    assert visible_text("\x1b[2Jé\t\n\u202e") == "\\x1b[2Jé\t\n\\u202e"
    assert visible_bytes(b"\xff\x1b\xc3\xa9") == "\\xff\\x1bé".encode()
    assert all(each == "\t" or each.isprintable() for each in visible_text(HOSTILE))


def test_json_means_the_same_as_before() -> None:
    text = json.dumps({"value": HOSTILE}, ensure_ascii=False)
    assert json.loads(visible_json(text)) == {"value": HOSTILE}
    assert visible_json(text).isprintable()


def test_tables_are_harmless_too() -> None:
    assert "\x1b" not in format_table(["client"], [[HOSTILE]])


@pytest.mark.parametrize("size", [1_000_000])
def test_large_data_is_not_slow(size: int) -> None:
    assert len(visible_bytes(b"\x00" * size)) == 4 * size
