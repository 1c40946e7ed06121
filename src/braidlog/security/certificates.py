"""Who a certificate names, and the rules that make a user of that."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_SHORT_NAMES = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
    "emailAddress": "EMAILADDRESS",
}
_RULE = re.compile(r"\s*(?:(DEFAULT)|(RULE|SAN):((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_SPECIAL = re.compile(r'([,+"\\<>;=])')
_REPLACED = re.compile(r"\\(.)|\$(\d)")


def _escaped(value: str) -> str:
    return _SPECIAL.sub(r"\\\1", value)


def distinguished_name(certificate: Mapping[str, Any]) -> str:
    """The subject of a certificate, as RFC 2253 writes it: `CN=alice,O=Example`.

    `certificate` is in the form of Python's `ssl`.
    """
    # A part may have several names. Without the plus sign they would look like several parts: another subject.
    parts = [
        "+".join(f"{_SHORT_NAMES.get(name, name)}={_escaped(value)}" for name, value in relative)
        for relative in reversed(certificate.get("subject", ()))
    ]
    return ",".join(parts)


def _pieces(replacement: str, group_count: int) -> list[str | int]:
    """The texts of a replacement, and the numbers of the groups between them.

    Raises `ValueError` for a group that the pattern does not have.
    """
    pieces: list[str | int] = []
    position = 0
    for found in _REPLACED.finditer(replacement):
        pieces.append(replacement[position : found.start()])
        position = found.end()
        if found[1] is not None:
            pieces.append(found[1])
        elif int(found[2]) <= group_count:
            pieces.append(int(found[2]))
        else:
            raise ValueError(f"{replacement!r} is no replacement: the pattern has {group_count} groups")
    return [*pieces, replacement[position:]]


class _Rule(NamedTuple):
    is_default: bool
    about_alternative_names: bool
    pattern: re.Pattern[str]
    pieces: list[str | int]
    case: str

    def replaced(self, found: re.Match[str]) -> str:
        return "".join([piece if isinstance(piece, str) else found[piece] or "" for piece in self.pieces])


class PrincipalRules:
    """Kafka's `ssl.principal.mapping.rules`.

    The first rule that matches gives the user. A rule is `DEFAULT`, `RULE:pattern/replacement/[L|U]` about the
    distinguished name, or the same with `SAN:` about the alternative names.
    """

    def __init__(self, text: str) -> None:
        """Raises `ValueError` for what is no rule."""
        self._rules: list[_Rule] = []
        position = 0
        while position < len(text):
            found = _RULE.match(text, position)
            if found is None or found.end() == position:
                raise ValueError(f"{text[position:]!r} is no rule: write DEFAULT or RULE:pattern/replacement/")
            default, kind, pattern, replacement, case = found.groups()
            try:
                compiled = re.compile((pattern or "").replace("\\/", "/"))
            except re.error as error:
                raise ValueError(f"{pattern!r} is no pattern: {error}") from None
            pieces = _pieces(replacement or "", compiled.groups)
            self._rules.append(_Rule(default is not None, kind == "SAN", compiled, pieces, case or ""))
            position = found.end()

    def user_of(self, certificate: Mapping[str, Any]) -> str | None:
        """The user that a certificate stands for; None if no rule matches."""
        name = distinguished_name(certificate)
        alternatives = [
            value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI", "email")
        ]
        for rule in self._rules:
            if rule.is_default:
                return name or None
            for candidate in alternatives if rule.about_alternative_names else [name]:
                if rule.pattern.fullmatch(candidate):
                    user = rule.pattern.sub(rule.replaced, candidate, count=1)
                    return {"L": user.lower(), "U": user.upper()}.get(rule.case, user) or None
        return None
