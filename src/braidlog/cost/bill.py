"""The bill for what was used. Pure."""

from dataclasses import dataclass

from braidlog.cost.prices import GB, MONTH_S, Price


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used since some start."""

    put_count: int = 0
    get_count: int = 0
    list_count: int = 0
    delete_count: int = 0
    upload_bytes: int = 0
    download_bytes: int = 0
    cross_zone_bytes: int = 0
    stored_byte_s: float = 0.0
    """Bytes stored, times the seconds for which they were stored."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            put_count=self.put_count + other.put_count,
            get_count=self.get_count + other.get_count,
            list_count=self.list_count + other.list_count,
            delete_count=self.delete_count + other.delete_count,
            upload_bytes=self.upload_bytes + other.upload_bytes,
            download_bytes=self.download_bytes + other.download_bytes,
            cross_zone_bytes=self.cross_zone_bytes + other.cross_zone_bytes,
            stored_byte_s=self.stored_byte_s + other.stored_byte_s,
        )


@dataclass(frozen=True, slots=True)
class Bill:
    requests_usd: float
    transfer_usd: float
    storage_usd: float
    total_usd: float
    month_usd: float
    """The cost of a whole month at the same pace, while everything stored now stays stored."""


def bill(usage: Usage, price: Price, *, elapsed_s: float, stored_bytes: int = 0) -> Bill:
    """Return the cost of `elapsed_s` seconds' use, and of a month at that pace."""
    requests_usd = (
        usage.put_count * price.put_usd
        + usage.get_count * price.get_usd
        + usage.list_count * price.list_usd
        + usage.delete_count * price.delete_usd
    )
    transfer_usd = (
        usage.upload_bytes * price.upload_usd_per_gb
        + usage.download_bytes * price.retrieval_usd_per_gb
        + usage.cross_zone_bytes * price.cross_zone_usd_per_gb
    ) / GB
    storage_usd = usage.stored_byte_s / MONTH_S * price.storage_usd_per_gb_month / GB
    month_usd = stored_bytes * price.storage_usd_per_gb_month / GB
    if elapsed_s > 0:
        month_usd += (requests_usd + transfer_usd) * MONTH_S / elapsed_s
    return Bill(
        requests_usd=requests_usd,
        transfer_usd=transfer_usd,
        storage_usd=storage_usd,
        total_usd=requests_usd + transfer_usd + storage_usd,
        month_usd=month_usd,
    )
