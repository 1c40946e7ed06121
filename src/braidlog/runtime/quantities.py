"""Sizes, durations and addresses as people write them: `4MiB`, `250ms`, `127.0.0.1:9092`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

_QUANTITY = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", re.ASCII)

_BYTES = {
    "": 1,
    "b": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), 1)},
}
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _parse(value: object, units: Mapping[str, int], kind: str, choices: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"is not {kind}")
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"is not {kind}: a number, then one of {choices}")
    unit = units.get(match[2].lower())
    if unit is None:
        raise ValueError(f"has the unknown unit {match[2]!r}: use one of {choices}")
    return Fraction(match[1]) * unit


def parse_bytes(value: object) -> int:
    """Bytes from 4194304, "4194304" or "4MiB". KB is 1000, KiB is 1024."""
    if isinstance(value, int) and not isinstance(value, bool) and value < 0:
        raise ValueError("is negative")
    size = _parse(value, _BYTES, "a size", "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB")
    if size.denominator != 1:
        raise ValueError("is not a whole number of bytes")
    return int(size)


def parse_milliseconds(value: object) -> int:
    """Milliseconds from 250, "250", "250ms" or "2s": a bare number is milliseconds."""
    ms = _parse(value, {"": 1, **_MILLISECONDS}, "a duration", "ms, s, m, h, d")
    if ms.denominator != 1:
        raise ValueError("is not a whole number of milliseconds")
    return int(ms)


def parse_seconds(value: object) -> float:
    """Seconds from 30, "30", "30s", "500ms" or "1h": a bare number is seconds."""
    return float(_parse(value, {"": 1000, **_MILLISECONDS}, "a duration", "ms, s, m, h, d") / 1000)


def format_bytes(size: float) -> str:
    """ "4.0 MiB", for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host and a port. IPv6 hosts stand in brackets: `[::1]:9092`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether it means every interface: good to listen on, impossible to connect to."""
        return self.host in {"0.0.0.0", "::"}

    @classmethod
    def parse(cls, value: object) -> "Address":
        if isinstance(value, Address):
            return value
        if not isinstance(value, str):
            raise ValueError("is not an address: write HOST:PORT")
        host, colon, port = value.strip().rpartition(":")
        if not colon:
            raise ValueError("has no port: write HOST:PORT")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError("has an IPv6 host without brackets: write [HOST]:PORT")
        if not host or any(character.isspace() or character in "/[]@" for character in host):
            raise ValueError("has no usable host: write HOST:PORT")
        if not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ValueError(f"has the port {port!r}, which is not a number from 0 to 65535")
        return cls(host, int(port))
