import math

import pytest

from braidlog.cost.bill import Usage, bill
from braidlog.cost.prices import FREE, GB, MONTH_S, S3_EXPRESS, S3_STANDARD, price_for, puts_per_s_for_budget


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("memory://", "free"),
        ("file:///var/lib/braidlog", "free"),
        ("gs://bucket", "free"),
        ("az://container", "free"),
        ("s3://bucket/prefix", "s3-standard"),
        ("s3://bucket?region=us-east-1", "s3-standard"),
        ("s3://bucket?endpoint=https://s3.eu-west-1.amazonaws.com", "s3-standard"),
        ("s3://bucket?endpoint=http://127.0.0.1:8333", "free"),
        ("s3://bucket--use1-az4--x-s3/prefix", "s3-express"),
        ("s3://bucket?express=true", "s3-express"),
    ],
)
def test_a_url_has_its_price(url: str, name: str) -> None:
    assert price_for(url).name == name


def test_the_default_budget_pays_for_five_puts_a_second() -> None:
    assert puts_per_s_for_budget(65, S3_STANDARD) == pytest.approx(5, rel=0.02)
    assert puts_per_s_for_budget(65, S3_EXPRESS) == pytest.approx(21.9, rel=0.02)
    assert puts_per_s_for_budget(0, S3_STANDARD) == 0
    assert math.isinf(puts_per_s_for_budget(0, FREE))
    with pytest.raises(ValueError):
        puts_per_s_for_budget(-1, S3_STANDARD)


def test_a_bill_by_hand() -> None:
    usage = Usage(put_count=1000, get_count=10_000, list_count=1000, delete_count=10**6)
    usage += Usage(upload_bytes=2 * GB, download_bytes=10 * GB, cross_zone_bytes=GB, stored_byte_s=GB * MONTH_S / 2.0)
    standard = bill(usage, S3_STANDARD, elapsed_s=3600, stored_bytes=100 * GB)
    assert standard.requests_usd == pytest.approx(0.005 + 0.004 + 0.005)
    assert standard.transfer_usd == pytest.approx(0.01)
    assert standard.storage_usd == pytest.approx(0.0115)
    assert standard.total_usd == pytest.approx(0.014 + 0.01 + 0.0115)
    assert standard.month_usd == pytest.approx(730 * 0.024 + 2.3)
    express = bill(usage, S3_EXPRESS, elapsed_s=3600)
    assert express.requests_usd == pytest.approx(2 * 0.00113 + 10 * 0.00003)
    assert express.transfer_usd == pytest.approx(2 * 0.0032 + 10 * 0.0006 + 0.01)
    assert bill(usage, FREE, elapsed_s=3600, stored_bytes=GB).month_usd == 0


def test_nothing_used_in_no_time_costs_nothing() -> None:
    assert bill(Usage(), S3_STANDARD, elapsed_s=0).month_usd == 0


def test_the_budget_is_what_the_bill_says() -> None:
    puts = round(puts_per_s_for_budget(65, S3_STANDARD) * 3600)
    assert bill(Usage(put_count=puts), S3_STANDARD, elapsed_s=3600).month_usd == pytest.approx(65, rel=0.001)
