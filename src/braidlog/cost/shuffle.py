"""What a shuffle through the object store does and costs, by arithmetic, and what other shuffles of the same data cost.

Steady state: records are spread evenly over instances and zones, and every instance fills one batch per destination
zone. Pure.
"""

from dataclasses import dataclass
from math import inf

from braidlog.cost.bill import Usage, bill
from braidlog.cost.prices import MONTH_S, Machine, Price

HOUR_S = 3600
FILL_MEASURED = 0.975
"""How full batches of up to 32 MiB are when commits close the last ones early; at 128 MiB it is about 0.9."""
OVERHEAD_MEASURED = 1.03
"""Bytes stored for each byte of records that are not compressed: framing, footers, trailers."""
MACHINE_BYTES_PER_S = 116.7 * (1 << 20)
"""What one r6in.xlarge shuffles in batches of 16 MiB."""


@dataclass(frozen=True, slots=True)
class ShuffleLoad:
    """A shuffle and its settings."""

    bytes_per_s: float
    """Of all instances together."""
    batch_bytes: float
    zones: int = 3
    instances: int = 1
    """Who fill batches independently: nodes where buffers are shared, tasks where they are not."""
    record_bytes: float = 1024.0
    interval_s: float = inf
    """A batch that is not full after so long is closed."""
    fill: float = 1.0
    """Mean size of a batch that is not closed by the interval, as a part of `batch_bytes`."""
    overhead: float = 1.0
    """Bytes stored for each byte of records."""
    put_s: float = 0.0
    get_s: float = 0.0
    retention_s: float = HOUR_S

    def __post_init__(self) -> None:
        if min(self.bytes_per_s, self.batch_bytes, self.record_bytes, self.interval_s, self.overhead) <= 0:
            raise ValueError("rates, sizes and intervals must be above zero")
        if min(self.zones, self.instances) < 1:
            raise ValueError("there is at least one zone and one instance")
        if not 0 < self.fill <= 1:
            raise ValueError(f"a fill of {self.fill}: it is above 0 and at most 1")
        if min(self.put_s, self.get_s, self.retention_s) < 0:
            raise ValueError("latencies and retention cannot be negative")

    @property
    def zones_crossed(self) -> float:
        """Of all bytes, the part whose destination is in another zone."""
        return (self.zones - 1) / self.zones


@dataclass(frozen=True, slots=True)
class ShuffleRates:
    """What the model predicts."""

    records_per_s: float
    instance_bytes_per_s: float
    batch_fill_s: float
    """From the first record of a batch until it is closed."""
    batch_bytes_mean: float
    puts_per_s: float
    gets_per_s: float
    latency_s_max: float
    """Of a record that opens a batch, with PUT and GET taking as long as the load says."""
    stored_bytes: float
    """What retention keeps."""


@dataclass(frozen=True, slots=True)
class HourlyBill:
    requests_usd: float
    storage_usd: float
    transfer_usd: float
    """What the store charges by the byte, and traffic between zones."""
    machines_usd: float
    total_usd: float


def predict(load: ShuffleLoad) -> ShuffleRates:
    instance_bytes_per_s = load.bytes_per_s / load.instances
    stored_bytes_per_s = load.bytes_per_s * load.overhead
    buffer_bytes_per_s = stored_bytes_per_s / load.instances / load.zones
    batch_bytes_mean = min(load.batch_bytes * load.fill, buffer_bytes_per_s * load.interval_s)
    batch_fill_s = min(load.batch_bytes * load.zones / instance_bytes_per_s, load.interval_s)
    puts_per_s = stored_bytes_per_s / batch_bytes_mean
    return ShuffleRates(
        records_per_s=load.bytes_per_s / load.record_bytes,
        instance_bytes_per_s=instance_bytes_per_s,
        batch_fill_s=batch_fill_s,
        batch_bytes_mean=batch_bytes_mean,
        puts_per_s=puts_per_s,
        # A batch is read in one zone only. There it is fetched once, and not at all in the zone that wrote it.
        gets_per_s=puts_per_s * load.zones_crossed,
        latency_s_max=batch_fill_s + load.put_s + load.get_s,
        stored_bytes=stored_bytes_per_s * load.retention_s,
    )


def shuffle_bill(
    load: ShuffleLoad, price: Price, *, machine: Machine | None = None, machine_bytes_per_s: float = MACHINE_BYTES_PER_S
) -> HourlyBill:
    """An hour of it. With a `machine`, also the share of machines that shuffle so much."""
    rates = predict(load)
    month = bill(
        Usage(
            put_count=round(rates.puts_per_s * MONTH_S),
            get_count=round(rates.gets_per_s * MONTH_S),
            upload_bytes=round(rates.puts_per_s * rates.batch_bytes_mean * MONTH_S),
            download_bytes=round(rates.gets_per_s * rates.batch_bytes_mean * MONTH_S),
            stored_byte_s=rates.stored_bytes * MONTH_S,
        ),
        price,
        elapsed_s=MONTH_S,
    )
    machines_usd = load.bytes_per_s / machine_bytes_per_s * machine.usd_per_hour if machine is not None else 0.0
    return _hourly(month.requests_usd, month.storage_usd, month.transfer_usd, machines_usd)


def kafka_bill(load: ShuffleLoad, price: Price, *, replicas: int = 3) -> HourlyBill:
    """An hour of the same shuffle through a repartition topic of Kafka: traffic between zones alone, without brokers
    and disks. Consumers read in their own zone."""
    if replicas < 1:
        raise ValueError(f"{replicas} replicas")
    # Of the leader's followers, those that have no zone of their own share the leader's.
    in_leaders_zone = -(-replicas // load.zones)
    return _crossing(load, price, load.zones_crossed + replicas - in_leaders_zone)


def native_spark_bill(load: ShuffleLoad, price: Price) -> HourlyBill:
    """An hour of the same shuffle through Spark's own: traffic between zones alone. Nothing is replicated."""
    return _crossing(load, price, load.zones_crossed)


def _crossing(load: ShuffleLoad, price: Price, crossings: float) -> HourlyBill:
    # Both the sender and the receiver pay.
    usage = Usage(cross_zone_bytes=round(2 * crossings * load.bytes_per_s * MONTH_S))
    return _hourly(0.0, 0.0, bill(usage, price, elapsed_s=MONTH_S).transfer_usd, 0.0)


def _hourly(requests_usd: float, storage_usd: float, transfer_usd: float, machines_usd: float) -> HourlyBill:
    """From a month of the store's figures, and an hour of machines."""
    hours = MONTH_S / HOUR_S
    parts = (requests_usd / hours, storage_usd / hours, transfer_usd / hours, machines_usd)
    return HourlyBill(*parts, total_usd=sum(parts))
