"""`braid cost`: what something would cost, before anybody pays for it."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from braidlog.cli.options import Format
from braidlog.cli.output import OutputFormat, emit, emit_fields, emit_json, emit_rows

app = typer.Typer(help="Predict rates, latency and bills.", no_args_is_help=True)


@app.callback()
def cost() -> None:
    """Predict rates, latency and bills from list prices."""


@app.command()
def shuffle(
    rate: Annotated[str, typer.Option("--rate", help="Bytes a second that are shuffled.")] = "1GiB/s",
    batch: Annotated[str, typer.Option("--batch", help="The size at which a batch is closed.")] = "16MiB",
    interval: Annotated[str, typer.Option("--interval", help="Or the age at which it is; 0 for none.")] = "5s",
    zones: Annotated[int, typer.Option("--zones", min=1, help="Over how many zones everything is spread.")] = 3,
    instances: Annotated[
        int, typer.Option("--instances", min=1, help="Who fill batches: nodes that share buffers, or else tasks.")
    ] = 24,
    record: Annotated[str, typer.Option("--record", help="Mean size of a record.")] = "1KiB",
    retention: Annotated[str, typer.Option("--retention", help="How long batches stay.")] = "1h",
    fill: Annotated[float, typer.Option("--fill", help="How full batches are that are closed by size.")] = 0.975,
    overhead: Annotated[float, typer.Option("--overhead", help="Bytes stored for each byte of records.")] = 1.03,
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Of Kafka's repartition topic.")] = 3,
    price: Annotated[str, typer.Option("--price", help="s3-standard, s3-express or free.")] = "s3-standard",
    latency: Annotated[str, typer.Option("--latency", help="The model of the store's latency.")] = "s3",
    machine: Annotated[str, typer.Option("--machine", help="What executors run on; none to leave them out.")] = (
        "r6in.xlarge"
    ),
    machine_rate: Annotated[
        str, typer.Option("--machine-rate", help="Bytes a second that one machine shuffles.")
    ] = "116.7MiB/s",
    format: Format = OutputFormat.TEXT,
) -> None:
    """Predict a shuffle through the store: its rates, its latency, and its bill beside Kafka's and native Spark's.

    Example: braid cost shuffle --rate 1GiB/s --batch 16MiB --zones 3
    """
    from math import inf

    from braidlog.cost.prices import AS_OF, MACHINES, PRICES
    from braidlog.cost.shuffle import ShuffleLoad, kafka_bill, native_spark_bill, predict, shuffle_bill
    from braidlog.objects.latency import latency_profile

    batch_bytes = _size("--batch", batch)
    profile = latency_profile(latency)
    prices = _one_of("--price", price, PRICES)
    machines = None if machine == "none" else _one_of("--machine", machine, MACHINES)
    try:
        load = ShuffleLoad(
            bytes_per_s=_rate("--rate", rate),
            batch_bytes=batch_bytes,
            zones=zones,
            instances=instances,
            record_bytes=_size("--record", record),
            interval_s=_seconds("--interval", interval) or inf,
            fill=fill,
            overhead=overhead,
            put_s=profile.put_s_median + batch_bytes / profile.upload_bytes_per_s,
            get_s=profile.get_s_median + batch_bytes / profile.download_bytes_per_s,
            retention_s=_seconds("--retention", retention),
        )
        blob = shuffle_bill(
            load, prices, machine=machines, machine_bytes_per_s=max(1.0, _rate("--machine-rate", machine_rate))
        )
        bills = {
            "blob shuffle": blob,
            f"kafka, {replicas} replicas": kafka_bill(load, prices, replicas=replicas),
            "native spark": native_spark_bill(load, prices),
        }
    except ValueError as error:
        raise _wrong("the shuffle cannot be computed", error) from error
    rates = predict(load)
    rows = [
        {
            "shuffle": name,
            **{part: round(usd, 4) for part, usd in asdict(each).items()},
            "times": round(each.total_usd / blob.total_usd, 2) if blob.total_usd else None,
        }
        for name, each in bills.items()
    ]
    if format is OutputFormat.JSON:
        emit_json({"rates": asdict(rates), "usd_per_hour": rows, "prices": prices.name, "prices_as_of": AS_OF})
        return
    emit_fields(
        format,
        {
            "records": f"{rates.records_per_s:,.0f}/s",
            "per instance": f"{_mib(rates.instance_bytes_per_s)}/s",
            "batch closes after": f"{rates.batch_fill_s:.2f} s, with {_mib(rates.batch_bytes_mean)}",
            "PUT": f"{rates.puts_per_s:.2f}/s",
            "GET": f"{rates.gets_per_s:.2f}/s",
            "latency bound": f"{rates.latency_s_max:.2f} s = fill {rates.batch_fill_s:.2f} + PUT {load.put_s:.2f}"
            f" + GET {load.get_s:.2f}",
            "stored": _mib(rates.stored_bytes),
        },
    )
    emit("")
    emit_rows(format, list(rows[0]), [{**row, **_two_digits(row)} for row in rows])
    emit("")
    emit(f"US dollars an hour by the list prices of {AS_OF} ({prices.name}, us-east-1).")
    emit("Kafka and native Spark: traffic between zones alone, without the machines and disks that they need, too.")


def _two_digits(row: dict[str, Any]) -> dict[str, str]:
    return {name: f"{value:.2f}" for name, value in row.items() if isinstance(value, float)}


def _mib(size_bytes: float) -> str:
    from braidlog.runtime.quantities import format_bytes

    return format_bytes(size_bytes)


def _size(option: str, text: str) -> int:
    from braidlog.runtime.quantities import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise _wrong(f"{option} {text!r}", error) from error


def _rate(option: str, text: str) -> float:
    """`1GiB/s`; a rate need not be whole."""
    from braidlog.runtime.quantities import parse_bytes

    number = text.strip().removesuffix("/s")
    try:
        digits = number.rstrip("BKMGTibkmgt ")
        return float(digits) * parse_bytes(f"1{number[len(digits) :].strip()}")
    except ValueError as error:
        raise _wrong(f"{option} {text!r}", error) from error


def _seconds(option: str, text: str) -> float:
    from braidlog.runtime.quantities import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise _wrong(f"{option} {text!r}", error) from error


def _one_of(option: str, name: str, known: dict[str, Any]) -> Any:
    from braidlog.cli.errors import CommandError

    if name not in known:
        raise CommandError(f"{option} {name!r} is unknown", help=f"Use one of {', '.join(known)}.")
    return known[name]


def _wrong(what: str, error: ValueError) -> Exception:
    from braidlog.cli.errors import CommandError

    return CommandError(f"{what}: {error}", help="For example: --rate 1GiB/s --batch 16MiB --interval 5s --zones 3")
