"""Sizes, durations and addresses as people write them.

For example `4MiB`, `250ms` and `127.0.0.1:9092`.
"""

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


def parse_rate(value: object) -> float:
    """Bytes a second from "1GiB/s", "116.7MiB" or 1000. A rate need not be whole."""
    text = value.strip().removesuffix("/s") if isinstance(value, str) else value
    return float(_parse(text, _BYTES, "a rate", "B/s, KB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s, GiB/s, TiB/s"))


def format_bytes(size: float) -> str:
    """ "4MiB" or "4.1MiB": about so much, for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f}{unit}" if unit == "B" else f"{_one_digit(size)}{unit}"
        size /= 1024
    return f"{_one_digit(size)}TiB"


def _one_digit(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def write_bytes(size: int) -> str:
    """ "256MiB" or "1000B": exactly, so that `parse_bytes` gives the same number again."""
    return _write(size, {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4})


def write_milliseconds(ms: int) -> str:
    """ "250ms" or "7d": exactly."""
    return _write(ms, {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000})


def write_seconds(seconds: float) -> str:
    """ "30s" or "500ms": exactly, where it is a whole number of milliseconds."""
    ms = Fraction(str(seconds)) * 1000
    return write_milliseconds(int(ms)) if ms.denominator == 1 else f"{seconds}s"


def _write(quantity: int, units: Mapping[str, int]) -> str:
    """Write a quantity in the largest unit that divides it.

    Zero has the smallest unit.
    """
    fitting = [unit for unit, size in units.items() if quantity % size == 0]
    unit = fitting[-1] if quantity else fitting[0]
    return f"{quantity // units[unit]}{unit}"


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host and a port. IPv6 hosts stand in brackets: `[::1]:9092`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether the host stands for every interface.

        It is good to listen on, and impossible to connect to.
        """
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


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of one service, such as `a:9190`.

    It is `a:9190,b:9190` if the service can move between them.
    """

    each: tuple[Address, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.each))

    @classmethod
    def parse(cls, value: object) -> "Addresses":
        if isinstance(value, Addresses):
            return value
        if isinstance(value, Address):
            return cls((value,))
        if not isinstance(value, str):
            raise ValueError("is not an address: write HOST:PORT, or several with commas between them")
        return cls(tuple(Address.parse(part) for part in value.split(",")))
