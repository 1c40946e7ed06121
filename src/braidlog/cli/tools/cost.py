"""`braid cost`: predict what something will cost."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from braidlog.cli.options import Format, duration_s, rate_bytes_per_s, size_bytes
from braidlog.cli.output import OutputFormat, emit, emit_fields, emit_json, emit_rows
from braidlog.clients.errors import WrongUsage

if TYPE_CHECKING:
    from braidlog.cost.shuffle import HourlyBill, ShuffleLoad
    from braidlog.spark.shuffle.service.usage import ShuffleUsage

app = typer.Typer(help="Predict rates, latency and bills.", no_args_is_help=True)


@app.callback()
def cost() -> None:
    """Predict rates, latency and bills from list prices."""


@app.command()
def shuffle(
    rate: Annotated[str, typer.Option("--rate", metavar="RATE", help="Bytes a second that are shuffled.")] = "1GiB/s",
    batch: Annotated[
        str, typer.Option("--batch", metavar="SIZE", help="The size at which a batch is closed.")
    ] = "16MiB",
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="The age at which it is closed; 0 for none.")
    ] = "5s",
    zones: Annotated[
        int, typer.Option("--zones", metavar="N", min=1, help="How many zones tasks and data are spread over.")
    ] = 3,
    instances: Annotated[
        int,
        typer.Option("--instances", metavar="N", min=1, help="What fills batches: nodes that share buffers, or tasks."),
    ] = 24,
    record: Annotated[str, typer.Option("--record", metavar="SIZE", help="Mean size of a record.")] = "1KiB",
    retention: Annotated[str, typer.Option("--retention", metavar="TIME", help="How long batches stay.")] = "1h",
    fill: Annotated[
        float, typer.Option("--fill", metavar="SHARE", help="How full batches closed by size are.")
    ] = 0.975,
    overhead: Annotated[
        float, typer.Option("--overhead", metavar="TIMES", help="Bytes stored for each byte of records.")
    ] = 1.03,
    replicas: Annotated[
        int, typer.Option("--replicas", metavar="N", min=1, help="Replicas of Kafka's repartition topic.")
    ] = 3,
    price: Annotated[
        str, typer.Option("--price", metavar="NAME", help="s3-standard, s3-express or free.")
    ] = "s3-standard",
    latency: Annotated[str, typer.Option("--latency", metavar="NAME", help="The model of the store's latency.")] = "s3",
    machine: Annotated[
        str, typer.Option("--machine", metavar="NAME", help="What executors run on; none to leave them out.")
    ] = ("r6in.xlarge"),
    machine_rate: Annotated[
        str, typer.Option("--machine-rate", metavar="RATE", help="Bytes a second that one machine shuffles.")
    ] = "116.7MiB/s",
    store: Annotated[
        str, typer.Option("--store", metavar="URL", help="Take GETs per PUT from a shuffle in this store, with --job.")
    ] = "",
    job: Annotated[str, typer.Option("--job", metavar="NAME", help="The shuffle's job.")] = "",
    format: Format = OutputFormat.TEXT,
) -> None:
    """Predict a shuffle's rates, latency and bill.

    The bill stands beside those of Kafka and of Spark's own shuffle. With --store and --job, GETs are those that the
    nodes of that application have measured, and not those of the model.

    \b
    Example: braid cost shuffle --rate 1GiB/s --batch 16MiB --zones 3
    """
    from math import inf, isfinite

    from braidlog.cost.prices import MACHINES, PRICES
    from braidlog.cost.shuffle import ShuffleLoad, kafka_bill, native_spark_bill, shuffle_bill
    from braidlog.objects.latency import PROFILES

    if not isfinite(overhead):
        raise WrongUsage(f"--overhead {overhead} is not a number", help="For example: --overhead 1.03")
    batch_bytes = size_bytes("--batch", batch)
    profile = _one_of("--latency", latency, PROFILES)
    prices = _one_of("--price", price, PRICES)
    machine_bytes_per_s = max(1.0, rate_bytes_per_s("--machine-rate", machine_rate))
    machines = None if machine == "none" else _one_of("--machine", machine, MACHINES)
    usage = _measured(store, job) if store or job else None
    try:
        load = ShuffleLoad(
            bytes_per_s=rate_bytes_per_s("--rate", rate),
            batch_bytes=batch_bytes,
            zones=zones,
            instances=instances,
            record_bytes=size_bytes("--record", record),
            interval_s=duration_s("--interval", interval) or inf,
            fill=fill,
            overhead=overhead,
            put_s=profile.put_s_median + batch_bytes / profile.upload_bytes_per_s,
            get_s=profile.get_s_median + batch_bytes / profile.download_bytes_per_s,
            retention_s=duration_s("--retention", retention),
            gets_per_put=usage.gets_per_put if usage is not None else None,
        )
        blob = shuffle_bill(
            load,
            prices,
            machine=machines,
            machine_bytes_per_s=machine_bytes_per_s,
        )
        bills = {
            "blob shuffle": blob,
            f"kafka, {replicas} replicas": kafka_bill(load, prices, replicas=replicas),
            "native spark": native_spark_bill(load, prices),
        }
    except ValueError as error:
        raise WrongUsage(
            f"such a shuffle cannot be: {error}",
            help="For example: --rate 1GiB/s --batch 16MiB --interval 5s --zones 3",
        ) from error
    _report(load, bills, prices.name, usage, format)


def _measured(store_url: str, job: str) -> "ShuffleUsage":
    """Read what the nodes of an application have used."""
    import asyncio

    from braidlog.objects.open import open_store
    from braidlog.runtime.clock import SystemClock
    from braidlog.runtime.entropy import SystemEntropy
    from braidlog.spark.shuffle.service.collected_usage import stored_usage

    async def read() -> "ShuffleUsage":
        store = open_store(store_url, clock=SystemClock(), entropy=SystemEntropy())
        try:
            return await stored_usage(store, job)
        finally:
            await store.close()

    if not store_url or not job:
        raise WrongUsage(
            "--store and --job belong together", help="For example: --store s3://bucket/prefix --job orders"
        )
    found = asyncio.run(read())
    if not found.puts:
        raise WrongUsage(
            f"job {job!r} has measured nothing in this store",
            help="Nodes write it every 15 seconds, and at their end. Are these the job and the store of the shuffle?",
        )
    return found


def _report(
    load: "ShuffleLoad",
    bills: "Mapping[str, HourlyBill]",
    price_name: str,
    usage: "ShuffleUsage | None",
    output: OutputFormat,
) -> None:
    """Print the rates of a shuffle, and the bills beside each other.

    The first bill is Braidlog's.
    """
    from braidlog.cost.prices import AS_OF
    from braidlog.cost.shuffle import predict

    rates = predict(load)
    own_usd = next(iter(bills.values())).total_usd
    rows = [
        {
            "shuffle": name,
            **{part: round(usd, 4) for part, usd in asdict(each).items()},
            "times": round(each.total_usd / own_usd, 2) if own_usd else None,
        }
        for name, each in bills.items()
    ]
    if output is OutputFormat.JSON:
        measured = {"measured": usage_fields(usage)} if usage is not None else {}
        told = {"rates": asdict(rates), "usd_per_hour": rows, "prices": price_name, "prices_as_of": AS_OF}
        emit_json({**told, **measured})
        return
    emit_fields(
        output,
        {
            "records": f"{rates.records_per_s:,.0f}/s",
            "per instance": f"{_mib(rates.instance_bytes_per_s)}/s",
            "batch closes after": f"{rates.batch_fill_s:.2f} s, with {_mib(rates.batch_bytes_mean)}",
            "PUT": f"{rates.puts_per_s:.2f}/s",
            "GET": f"{rates.gets_per_s:.2f}/s",
            "latency bound": f"{rates.latency_s_max:.2f} s = fill {rates.batch_fill_s:.2f} + PUT {load.put_s:.2f}"
            f" + GET {load.get_s:.2f}",
            "stored": _mib(rates.stored_bytes),
            **({} if usage is None else {"measured": _in_words(usage)}),
        },
    )
    emit("")
    emit_rows(output, list(rows[0]), [{**row, **_two_digits(row)} for row in rows])
    emit("")
    emit(f"US dollars an hour by the list prices of {AS_OF} ({price_name}, us-east-1).")
    emit("Kafka and native Spark: traffic between zones alone, without the machines and disks that they need, too.")


def usage_fields(usage: "ShuffleUsage") -> dict[str, float]:
    """Return what was measured, for output."""
    counts = {name: getattr(usage, name) for name in usage.__struct_fields__}
    return {**counts, "gets_per_put": usage.gets_per_put, "in_zone_share": usage.in_zone_share}


def _in_words(usage: "ShuffleUsage") -> str:
    return (
        f"{usage.gets} GETs for {usage.puts} PUTs; {usage.in_zone_share:.0%} of {usage.reduce_tasks} reduce tasks"
        f" in their zone"
    )


def _two_digits(row: dict[str, Any]) -> dict[str, str]:
    return {name: f"{value:.2f}" for name, value in row.items() if isinstance(value, float)}


def _mib(size_bytes: float) -> str:
    from braidlog.runtime.quantities import format_bytes

    return format_bytes(size_bytes)


Known = TypeVar("Known")


def _one_of(option: str, name: str, known: Mapping[str, Known]) -> Known:
    if name not in known:
        raise WrongUsage(f"{option} {name!r} is unknown", help=f"Use one of {', '.join(known)}.")
    return known[name]
