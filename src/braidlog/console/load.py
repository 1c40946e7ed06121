"""The load of the cluster now: rates, latencies, what the store is asked."""

from itertools import pairwise
from typing import Any

from braidlog.console.desk import Desk
from braidlog.console.figures import Change, Sample, total
from braidlog.cost.bill import Usage, bill
from braidlog.cost.prices import FREE, MONTH_S, PRICES, S3_STANDARD, Price

READS = ("get", "get_range", "get_ranges", "get_tail", "head")
WRITES = ("put", "update")


def store_rates(change: Change) -> dict[str, float]:
    """Give the requests and bytes a second, by what they cost."""
    rates = change.rates_by("braidlog_store_requests_total", "operation")
    moved = change.rates_by("braidlog_store_bytes_total", "direction")
    return {
        "put": sum(rates.get(name, 0.0) for name in WRITES),
        "get": sum(rates.get(name, 0.0) for name in READS),
        "list": rates.get("list", 0.0),
        "delete": rates.get("delete", 0.0),
        "upload_bytes": moved.get("upload", 0.0),
        "download_bytes": moved.get("download", 0.0),
    }


def usage_of(rates: dict[str, float], seconds: float) -> Usage:
    return Usage(
        put_count=round(rates["put"] * seconds),
        get_count=round(rates["get"] * seconds),
        list_count=round(rates["list"] * seconds),
        delete_count=round(rates["delete"] * seconds),
        upload_bytes=round(rates["upload_bytes"] * seconds),
        download_bytes=round(rates["download_bytes"] * seconds),
    )


def chosen_price(desk: Desk, name: str = "") -> tuple[Price, bool]:
    """Give the price list to show, and whether the cluster itself goes by another one.

    Where requests are free, the bill of S3 Standard says more than a row of zeros.
    """
    own = next((PRICES[each.price] for each in desk.sampler.facts if each.price in PRICES), FREE)
    price = PRICES.get(name) or (own if own is not FREE else S3_STANDARD)
    return price, price is not own


def load_now(desk: Desk) -> dict[str, Any]:
    """Give the figures that every page shows live."""
    change, last = desk.sampler.pace(), desk.sampler.last
    if change is None or last is None:
        return {"known": False}
    rates = store_rates(change)
    price, _ = chosen_price(desk)
    requests_usd = bill(usage_of(rates, MONTH_S), price, elapsed_s=MONTH_S).total_usd
    return {
        "known": True,
        "at_ms": last.at_ms,
        "produce_bytes_s": sum(change.rates_by("braidlog_upload_bytes_total", "topic").values()),
        "produce_requests_s": change.rate("braidlog_agent_requests_total", api="produce"),
        "fetch_requests_s": change.rate("braidlog_agent_requests_total", api="fetch"),
        "produce_ms_p50": _ms(change.quantile("braidlog_agent_request_seconds", 0.5, api="produce")),
        "produce_ms_p99": _ms(change.quantile("braidlog_agent_request_seconds", 0.99, api="produce")),
        "put_ms_p50": _ms(change.quantile("braidlog_store_request_seconds", 0.5, operation="put")),
        "puts_s": rates["put"],
        "gets_s": rates["get"],
        "upload_bytes_s": rates["upload_bytes"],
        "download_bytes_s": rates["download_bytes"],
        "backlog_bytes": _sum(last, "braidlog_agent_backlog_bytes"),
        "uploads_in_flight": _sum(last, "braidlog_agent_uploads_in_flight"),
        "connections": _sum(last, "braidlog_agent_connections"),
        "usd_month": requests_usd,
        "price": price.name,
        "silent": list(last.silent),
    }


def history(desk: Desk) -> dict[str, list[float | None]]:
    """Give the last minutes as columns, for plots."""
    columns: dict[str, list[float | None]] = {
        name: [] for name in ("at_s", "produce_bytes_s", "puts_s", "gets_s", "produce_ms_p99", "usd_month")
    }
    samples = list(desk.sampler.samples)
    price, _ = chosen_price(desk)
    for before, after in pairwise(samples):
        change = Change(before, after)
        rates = store_rates(change)
        columns["at_s"].append(after.at_ms / 1000)
        columns["produce_bytes_s"].append(sum(change.rates_by("braidlog_upload_bytes_total", "topic").values()))
        columns["puts_s"].append(rates["put"])
        columns["gets_s"].append(rates["get"])
        columns["produce_ms_p99"].append(_ms(change.quantile("braidlog_agent_request_seconds", 0.99, api="produce")))
        columns["usd_month"].append(bill(usage_of(rates, MONTH_S), price, elapsed_s=MONTH_S).total_usd)
    return columns


def _sum(sample: Sample, name: str) -> float:
    return sum(total(figures, name) for figures in sample.by_place.values())


def _ms(seconds: float | None) -> float | None:
    return round(seconds * 1000, 1) if seconds is not None else None
