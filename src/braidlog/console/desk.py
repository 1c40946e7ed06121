"""What the pages share: the cluster, its figures, and the arguments of a request."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from braidlog.clients.errors import WrongUsage
from braidlog.console.cluster import Cluster
from braidlog.console.sampler import Sampler
from braidlog.runtime.clock import Clock

PAGE_ROWS = 50
PAGE_ROWS_MAX = 500


@dataclass(frozen=True, slots=True)
class Desk:
    cluster: Cluster
    sampler: Sampler
    clock: Clock


class Arguments:
    """The path, the query and the body of a request, read with care."""

    def __init__(
        self, path: Mapping[str, Any], query: Mapping[str, str], body: Mapping[str, Any] | None = None
    ) -> None:
        self._path = path
        self._query = query
        self._body = body or {}

    def name(self, key: str) -> str:
        """Give a part of the path."""
        return str(self._path[key])

    def text(self, key: str, default: str = "") -> str:
        value = self._body.get(key, self._query.get(key, default))
        if not isinstance(value, str):
            raise WrongUsage(f"{key} is not text", help=f"Send {key} as a string.")
        return value

    def optional_text(self, key: str) -> str | None:
        """Give a text of the body that may be null."""
        return None if self._body.get(key) is None else self.text(key)

    def number(self, key: str, default: int, *, least: int = 0, most: int = 1 << 62) -> int:
        value = self._body.get(key, self._query.get(key, default))
        try:
            number = int(value)
        except (TypeError, ValueError):
            raise WrongUsage(f"{key}={value!r} is not a number", help=f"For example: {key}={default}") from None
        if not least <= number <= most:
            raise WrongUsage(f"{key}={number} is out of bounds", help=f"Use {least} to {most}.")
        return number

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._body.get(key, self._query.get(key, default))
        return value if isinstance(value, bool) else str(value).lower() in {"1", "true", "yes"}

    def pairs(self, key: str) -> dict[str, str]:
        """Give an object of the body whose values are texts."""
        found = self._body.get(key, {})
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise WrongUsage(f"{key} is not an object of texts", help=f'Send it as {{"{key}": {{"name": "value"}}}}.')
        return found

    def list(self, key: str) -> list[str]:
        found = self._body.get(key, [])
        if not isinstance(found, list) or not all(isinstance(value, str) for value in found):
            raise WrongUsage(f"{key} is not a list of texts", help=f'Send it as {{"{key}": ["…"]}}.')
        return found


def page_of(names: Sequence[str], arguments: Arguments) -> tuple[list[str], dict[str, Any]]:
    """Search names and give one page of them, with what says where it is."""
    search = arguments.text("q").strip().lower()
    found = [name for name in names if search in name.lower()] if search else list(names)
    size = arguments.number("rows", PAGE_ROWS, least=1, most=PAGE_ROWS_MAX)
    start = arguments.number("start", 0)
    rows = found[start : start + size]
    return rows, {"total": len(found), "start": start, "rows_max": size, "q": search}


def ordered(rows: list[dict[str, Any]], key: Callable[[dict[str, Any]], Any]) -> list[dict[str, Any]]:
    return sorted(rows, key=key, reverse=True)
