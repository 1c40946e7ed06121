"""Makes data harmless on a terminal.

A terminal obeys control characters: a record could clear the screen, set the title, or hide what it says.
"""

import re

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""All but tabs and ends of lines. Beyond ASCII: what reorders text or takes no room."""


def visible_text(text: str) -> str:
    """Show control characters by their number, such as `\\x1b` and `\\u202e`."""
    return _CONTROLS.sub(_number, text)


def visible_bytes(data: bytes) -> bytes:
    """Show control characters, and bytes that are not UTF-8, by their number."""
    return visible_text(data.decode("utf-8", "backslashreplace")).encode()


def visible_json(text: str) -> str:
    """Do the same in JSON, in its own escapes, so that it means the same as before."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _number(found: "re.Match[str]") -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
