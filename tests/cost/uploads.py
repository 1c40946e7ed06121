"""What uploading costs, by arithmetic instead of by measuring: how often a stream uploads, and what a month of it
is."""

from math import inf

from braidlog.cost.bill import Usage, bill
from braidlog.cost.prices import MONTH_S, Price


def upload_period_s(
    *, interval_s: float, requests_per_s: float, size_bytes: float = inf, bytes_per_s: float = 0.0
) -> float:
    """Seconds between two uploads of one stream. A batch closes an interval after its first request, and the next one
    does not begin before the next request comes; if it fills up sooner, it closes sooner."""
    if requests_per_s <= 0:
        return inf
    filled_s = size_bytes / bytes_per_s if bytes_per_s > 0 else inf
    return min(interval_s + 1.0 / requests_per_s, filled_s)


def streams_usd_month(price: Price, *, streams: int, period_s: float, upload_bytes_per_s: float = 0.0) -> float:
    """A month of so many streams, each of which uploads an object every `period_s` seconds. `upload_bytes_per_s` is of
    all together, and matters where stores charge for bytes that come in."""
    puts = streams * MONTH_S / period_s
    usage = Usage(put_count=round(puts), upload_bytes=round(upload_bytes_per_s * MONTH_S))
    return bill(usage, price, elapsed_s=MONTH_S).month_usd
