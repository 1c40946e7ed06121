"""The model of a shuffle: the published figures come out of it."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.cost.prices import FREE, MACHINES, S3_EXPRESS, S3_STANDARD
from braidlog.cost.shuffle import (
    ShuffleLoad,
    kafka_bill,
    native_spark_bill,
    predict,
    shuffle_bill,
)

FILL_MEASURED = 0.975
"""How full batches of up to 32 MiB are when commits close the last ones early; at 128 MiB it is about 0.9."""
OVERHEAD_MEASURED = 1.03
"""Bytes stored for each byte of records that are not compressed: framing, footers, trailers."""
MIB = 1 << 20
GIB = 1 << 30


def published(batch_mib: int, fill: float = FILL_MEASURED) -> ShuffleLoad:
    """1 GiB/s over three zones, as in the published evaluation."""
    return ShuffleLoad(GIB, batch_mib * MIB, instances=24, fill=fill, overhead=OVERHEAD_MEASURED)


@pytest.mark.parametrize(("batch_mib", "fill", "usd"), [(1, 0.975, 20.63), (16, 0.975, 1.40), (128, 0.90, 0.29)])
def test_the_published_bills(batch_mib: int, fill: float, usd: float) -> None:
    assert shuffle_bill(published(batch_mib, fill), S3_STANDARD).total_usd == pytest.approx(usd, abs=0.005)


def test_the_published_comparison() -> None:
    load = published(16)
    with_machines = shuffle_bill(load, S3_STANDARD, machine=MACHINES["r6in.xlarge"])
    assert with_machines.machines_usd == pytest.approx(3.06, abs=0.005)
    assert with_machines.total_usd == pytest.approx(4.46, abs=0.01)
    assert kafka_bill(load, S3_STANDARD).total_usd == pytest.approx(192)
    assert native_spark_bill(load, S3_STANDARD).total_usd == pytest.approx(48)
    assert kafka_bill(load, S3_STANDARD).total_usd / with_machines.total_usd == pytest.approx(43, abs=0.1)


def test_rates_by_hand() -> None:
    rates = predict(ShuffleLoad(GIB, 16 * MIB, instances=24, put_s=0.5, get_s=0.1))
    assert rates.records_per_s == MIB
    assert rates.instance_bytes_per_s == pytest.approx(GIB / 24)
    assert rates.batch_fill_s == pytest.approx(16 * 3 * 24 / 1024)
    assert rates.puts_per_s == pytest.approx(64)
    assert rates.gets_per_s == pytest.approx(64 * 2 / 3)
    assert rates.latency_s_max == pytest.approx(1.125 + 0.5 + 0.1)
    assert rates.stored_bytes == pytest.approx(3600 * GIB)


def test_a_slow_shuffle_is_closed_by_its_interval() -> None:
    rates = predict(ShuffleLoad(6 * MIB, 16 * MIB, instances=2, interval_s=5.0))
    assert rates.batch_fill_s == 5.0
    assert rates.batch_bytes_mean == pytest.approx(5 * MIB)
    assert rates.puts_per_s == pytest.approx(3 * 2 / 5)


def test_one_zone_reads_nothing_back_and_crosses_nothing() -> None:
    load = ShuffleLoad(GIB, 16 * MIB, zones=1)
    assert predict(load).gets_per_s == 0
    assert native_spark_bill(load, S3_STANDARD).total_usd == 0
    assert kafka_bill(load, S3_STANDARD).total_usd == 0


def test_replicas_that_share_the_leaders_zone_cross_nothing() -> None:
    load = ShuffleLoad(GIB, 16 * MIB, zones=2)
    assert kafka_bill(load, S3_STANDARD, replicas=4).total_usd == pytest.approx(3600 * 0.02 * (0.5 + 2))
    assert kafka_bill(load, S3_STANDARD, replicas=1).total_usd == native_spark_bill(load, S3_STANDARD).total_usd


def test_a_store_that_charges_by_the_byte() -> None:
    load = ShuffleLoad(GIB, 16 * MIB)
    express = shuffle_bill(load, S3_EXPRESS)
    assert express.transfer_usd == pytest.approx(3600 * (0.0032 + 0.0006 * 2 / 3))
    assert shuffle_bill(load, FREE).total_usd == 0


@given(
    rate=st.floats(1e3, 1e11),
    batch=st.integers(1 << 16, 128 * MIB),
    zones=st.integers(1, 6),
    instances=st.integers(1, 500),
    fill=st.floats(0.1, 1.0),
    interval=st.sampled_from([0.5, 5.0, 60.0, inf]),
)
def test_what_is_uploaded_is_what_came_in(
    rate: float, batch: int, zones: int, instances: int, fill: float, interval: float
) -> None:
    load = ShuffleLoad(rate, batch, zones=zones, instances=instances, fill=fill, interval_s=interval)
    rates = predict(load)
    assert rates.puts_per_s * rates.batch_bytes_mean == pytest.approx(rate)
    assert rates.batch_bytes_mean <= batch * fill * 1.000001
    assert rates.batch_fill_s <= interval
    assert 0 <= rates.gets_per_s < rates.puts_per_s
    larger = predict(ShuffleLoad(rate, batch * 2, zones=zones, instances=instances, fill=fill, interval_s=interval))
    assert larger.puts_per_s <= rates.puts_per_s * 1.000001
    assert larger.latency_s_max >= rates.latency_s_max


@pytest.mark.parametrize(
    "wrong",
    [{"bytes_per_s": 0}, {"batch_bytes": 0}, {"zones": 0}, {"fill": 0}, {"fill": 1.1}, {"put_s": -1}, {"overhead": 0}],
)
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    arguments: dict[str, float] = {"bytes_per_s": 1.0, "batch_bytes": 1.0, **wrong}
    with pytest.raises(ValueError):
        ShuffleLoad(**arguments)  # type: ignore[arg-type]


def test_no_replicas_are_refused() -> None:
    with pytest.raises(ValueError):
        kafka_bill(ShuffleLoad(1, 1), S3_STANDARD, replicas=0)
