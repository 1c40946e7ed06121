"""Parses points in time as people write them."""

from datetime import UTC, datetime

from braidlog.clients.errors import WrongUsage


def milliseconds(option: str, text: str) -> int:
    """Parse `1700000000000` or `2026-07-31T12:00:00Z` to milliseconds since 1970.

    The default zone is UTC.
    """
    if text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 62:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise WrongUsage(
            f"{option} {text!r} is not a time", help="Write milliseconds since 1970, or 2026-07-31T12:00:00Z."
        ) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
