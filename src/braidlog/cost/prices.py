"""The price book of object stores, in US dollars (AWS us-east-1). Pure."""

from dataclasses import dataclass
from math import inf
from urllib.parse import parse_qs, urlsplit

GB = 1 << 30
"""The bytes that AWS bills as a GB."""
MONTH_S = 730 * 3600
"""A month as AWS counts it."""
AS_OF = "2026-06"
"""The date of these list prices. They change every few years."""


DISK_USD_PER_GB_MONTH = 0.08
"""A GB of network disk (EBS gp3) for a month."""


@dataclass(frozen=True, slots=True)
class Price:
    name: str
    put_usd: float = 0.0
    """For one PUT; a LIST costs the same."""
    get_usd: float = 0.0
    """For one GET; a HEAD costs the same."""
    delete_usd: float = 0.0
    upload_usd_per_gb: float = 0.0
    retrieval_usd_per_gb: float = 0.0
    storage_usd_per_gb_month: float = 0.0
    cross_zone_usd_per_gb: float = 0.0
    """Each way, for traffic between zones that does not go through the store."""

    @property
    def list_usd(self) -> float:
        return self.put_usd


S3_STANDARD = Price(
    name="s3-standard",
    put_usd=0.005 / 1000,
    get_usd=0.0004 / 1000,
    storage_usd_per_gb_month=0.023,
    cross_zone_usd_per_gb=0.01,
)
S3_EXPRESS = Price(
    name="s3-express",
    put_usd=0.00113 / 1000,
    get_usd=0.00003 / 1000,
    upload_usd_per_gb=0.0032,
    retrieval_usd_per_gb=0.0006,
    storage_usd_per_gb_month=0.11,
    cross_zone_usd_per_gb=0.01,
)
FREE = Price(name="free")


@dataclass(frozen=True, slots=True)
class Machine:
    """A rented machine, by the hour, without commitment."""

    name: str
    usd_per_hour: float


MACHINES = {
    machine.name: machine
    for machine in (Machine("r6in.xlarge", 0.34866), Machine("m6in.2xlarge", 0.55692), Machine("m6i.xlarge", 0.192))
}
PRICES = {price.name: price for price in (S3_STANDARD, S3_EXPRESS, FREE)}


def price_for(url: str) -> Price:
    """Return the price list for a store's URL.

    Outside AWS requests are free: the owner pays for machines instead.
    """
    parts = urlsplit(url)
    if parts.scheme != "s3":
        return FREE
    options = parse_qs(parts.query)
    endpoint = options.get("endpoint", [""])[-1]
    if endpoint and ".amazonaws.com" not in (urlsplit(endpoint).hostname or ""):
        return FREE
    if parts.netloc.endswith("--x-s3") or options.get("express", [""])[-1].lower() in ("true", "1", "yes"):
        return S3_EXPRESS
    return S3_STANDARD


def puts_per_s_for_budget(usd_month: float, price: Price) -> float:
    """Return how many PUTs a second a monthly budget pays for.

    It is infinity if they are free.
    """
    if usd_month < 0:
        raise ValueError(f"a budget of {usd_month} USD")
    return usd_month / MONTH_S / price.put_usd if price.put_usd > 0 else inf
