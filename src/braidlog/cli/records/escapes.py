"""Backslash escapes in delimiters and templates, which shells pass on as they are."""

import re

from braidlog.clients.errors import WrongUsage

_NAMED = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "a": b"\a", "b": b"\b", "e": b"\x1b", "f": b"\f", "v": b"\v"}
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.?))", re.DOTALL)
KNOWN = r"\n, \t, \r, \0, \a, \b, \e, \f, \v, \\ and \xHH"


def unescape(option: str, text: str) -> bytes:
    """Replace escapes such as `\\t` and `\\x1f`, and encode the rest as UTF-8."""
    found = bytearray()
    position = 0
    for match in _ESCAPE.finditer(text):
        found += _encoded(text[position : match.start()])
        found += _meaning(option, match)
        position = match.end()
    return bytes(found + _encoded(text[position:]))


def _meaning(option: str, match: "re.Match[str]") -> bytes:
    hexadecimal, letter = match.groups()
    if hexadecimal is not None:
        return bytes.fromhex(hexadecimal)
    if letter == "\\":
        return b"\\"
    if letter not in _NAMED:
        raise WrongUsage(f"{option} has the unknown escape \\{letter}", help=f"Use one of {KNOWN}.")
    return _NAMED[letter]


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # arguments that are not UTF-8 keep their bytes


def delimiter(option: str, text: str) -> bytes:
    """Give the bytes of a delimiter, and refuse an empty one."""
    found = unescape(option, text)
    if not found:
        raise WrongUsage(f"{option} is empty", help=rf"Give at least one character, such as {option} '\t'")
    return found
