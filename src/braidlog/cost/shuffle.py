"""A model of shuffles through the object store, beside other shuffles.

It has their requests, latency and cost.

Steady state: records are spread evenly over instances and zones, and every instance fills one batch per destination
zone. Pure.
"""

from dataclasses import dataclass
from math import inf

from braidlog.cost.bill import Usage, bill
from braidlog.cost.prices import MONTH_S, Machine, Price

HOUR_S = 3600
MACHINE_BYTES_PER_S = 116.7 * (1 << 20)
"""The throughput of one r6in.xlarge with batches of 16 MiB."""


@dataclass(frozen=True, slots=True)
class ShuffleLoad:
    """A shuffle and its settings."""

    bytes_per_s: float
    """The rate of all instances together."""
    batch_bytes: float
    zones: int = 3
    instances: int = 1
    """How many fill batches independently: nodes if tasks share buffers, otherwise tasks."""
    record_bytes: float = 1024.0
    interval_s: float = inf
    """A batch that is not full after this long is closed."""
    fill: float = 1.0
    """The mean size of a batch that the interval does not close, as a share of `batch_bytes`."""
    overhead: float = 1.0
    """Bytes stored for each byte of records."""
    put_s: float = 0.0
    get_s: float = 0.0
    retention_s: float = HOUR_S
    gets_per_put: float | None = None
    """As measured. None: every batch of another zone is read once in its zone, and others not at all."""

    def __post_init__(self) -> None:
        if min(self.bytes_per_s, self.batch_bytes, self.record_bytes, self.interval_s, self.overhead) <= 0:
            raise ValueError("rates, sizes and intervals must be above zero")
        if min(self.zones, self.instances) < 1:
            raise ValueError("there is at least one zone and one instance")
        if not 0 < self.fill <= 1:
            raise ValueError(f"a fill of {self.fill}: it is above 0 and at most 1")
        if min(self.put_s, self.get_s, self.retention_s, self.gets_per_put or 0.0) < 0:
            raise ValueError("latencies, requests and retention cannot be negative")

    @property
    def zones_crossed(self) -> float:
        """The share of all bytes whose destination is in another zone."""
        return (self.zones - 1) / self.zones


@dataclass(frozen=True, slots=True)
class ShuffleRates:
    """The prediction of the model."""

    records_per_s: float
    instance_bytes_per_s: float
    batch_fill_s: float
    """The time from the first record of a batch until the batch is closed."""
    batch_bytes_mean: float
    puts_per_s: float
    gets_per_s: float
    latency_s_max: float
    """The latency of a record that opens a batch, with the times of PUT and GET that the load names."""
    stored_bytes: float
    """The bytes that retention keeps."""


@dataclass(frozen=True, slots=True)
class HourlyBill:
    requests_usd: float
    storage_usd: float
    transfer_usd: float
    """The store's charges by the byte, and traffic between zones."""
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
        gets_per_s=puts_per_s * (load.zones_crossed if load.gets_per_put is None else load.gets_per_put),
        latency_s_max=batch_fill_s + load.put_s + load.get_s,
        stored_bytes=stored_bytes_per_s * load.retention_s,
    )


def shuffle_bill(
    load: ShuffleLoad, price: Price, *, machine: Machine | None = None, machine_bytes_per_s: float = MACHINE_BYTES_PER_S
) -> HourlyBill:
    """Return the bill for an hour of the shuffle.

    With a `machine`, it includes the machines that this load needs.
    """
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
    """Return the bill for an hour of the shuffle through a Kafka repartition topic.

    It counts traffic between zones alone, without brokers and disks. Consumers read in their own zone.
    """
    if replicas < 1:
        raise ValueError(f"{replicas} replicas")
    # Followers without a zone of their own share the leader's.
    in_leaders_zone = -(-replicas // load.zones)
    return _crossing(load, price, load.zones_crossed + replicas - in_leaders_zone)


def native_spark_bill(load: ShuffleLoad, price: Price) -> HourlyBill:
    """Return the bill for an hour of the same shuffle through Spark's own.

    It has traffic between zones, and is not replicated.
    """
    return _crossing(load, price, load.zones_crossed)


def _crossing(load: ShuffleLoad, price: Price, crossings: float) -> HourlyBill:
    # Both the sender and the receiver pay.
    usage = Usage(cross_zone_bytes=round(2 * crossings * load.bytes_per_s * MONTH_S))
    return _hourly(0.0, 0.0, bill(usage, price, elapsed_s=MONTH_S).transfer_usd, 0.0)


def _hourly(requests_usd: float, storage_usd: float, transfer_usd: float, machines_usd: float) -> HourlyBill:
    """Make an hourly bill of the store's monthly costs and of an hour of machines."""
    hours = MONTH_S / HOUR_S
    parts = (requests_usd / hours, storage_usd / hours, transfer_usd / hours, machines_usd)
    return HourlyBill(*parts, total_usd=sum(parts))
