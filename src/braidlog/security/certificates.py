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


def _escaped(value: str) -> str:
    return _SPECIAL.sub(r"\\\1", value)


def distinguished_name(certificate: Mapping[str, Any]) -> str:
    """The subject of a certificate, as RFC 2253 writes it: `CN=alice,O=Example`.

    `certificate` is in the form of Python's `ssl`.
    """
    parts = [
        f"{_SHORT_NAMES.get(name, name)}={_escaped(value)}"
        for relative in reversed(certificate.get("subject", ()))
        for name, value in relative
    ]
    return ",".join(parts)


class _Rule(NamedTuple):
    is_default: bool
    about_alternative_names: bool
    pattern: re.Pattern[str]
    replacement: str
    case: str


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
            written = re.sub(r"\$(\d)", r"\\\1", (replacement or "").replace("\\/", "/"))
            self._rules.append(_Rule(default is not None, kind == "SAN", compiled, written, case or ""))
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
                    user = rule.pattern.sub(rule.replacement, candidate, count=1)
                    return {"L": user.lower(), "U": user.upper()}.get(rule.case, user) or None
        return None
