"""The model of uploads: budgets, latency, and other ways to do the same."""

import pytest

from braidlog.cost.prices import FREE, MONTH_S, S3_STANDARD
from braidlog.cost.uploads import UploadLoad, kafka_month_usd, predict_per_shard, predict_uploads

LOAD = UploadLoad(bytes_per_s=1e6, requests_per_s=100.0, shards=4, put_s=0.1, commit_s=0.0)


def test_a_larger_budget_never_waits_longer_and_never_costs_less() -> None:
    paces = [predict_uploads(LOAD, S3_STANDARD, budget) for budget in (0, 10, 65, 200, 1000, 10_000)]
    waits = [pace.wait_s_mean for pace in paces]
    assert waits == sorted(waits, reverse=True)
    assert [pace.usd_month for pace in paces] == sorted(pace.usd_month for pace in paces)
    assert waits[0] == pytest.approx(0.125)  # half of the interval
    assert waits[-1] < waits[0] / 5


def test_a_budget_that_is_spent_is_the_bill() -> None:
    pace = predict_uploads(LOAD, S3_STANDARD, 65.0)
    assert pace.usd_month == pytest.approx(65.0, rel=0.01)
    assert pace.latency_s_mean == pace.wait_s_mean + 0.1


def test_size_and_interval_ask_for_uploads_that_no_budget_pays() -> None:
    full = UploadLoad(bytes_per_s=400 * (4 << 20), requests_per_s=2000.0)
    assert predict_uploads(full, S3_STANDARD, 0.0).puts_per_s == pytest.approx(400)
    assert predict_uploads(LOAD, S3_STANDARD, 0.0).puts_per_s == pytest.approx(1 / 0.26)


def test_one_stream_per_shard_needs_more_puts_at_low_load_and_the_same_at_full_load() -> None:
    assert predict_per_shard(LOAD, S3_STANDARD, 0.0).puts_per_s > 3 * predict_uploads(LOAD, S3_STANDARD, 0.0).puts_per_s
    full = UploadLoad(bytes_per_s=400 * (4 << 20), requests_per_s=2000.0, shards=4)
    assert predict_per_shard(full, S3_STANDARD, 0.0).puts_per_s == predict_uploads(full, S3_STANDARD, 0.0).puts_per_s


def test_nothing_is_predicted_to_cost_nothing_without_load_or_prices() -> None:
    assert predict_uploads(UploadLoad(0.0, 0.0), S3_STANDARD, 65.0).usd_month == 0
    assert predict_uploads(LOAD, FREE, 65.0).usd_month == 0
    with pytest.raises(ValueError, match="above zero"):
        UploadLoad(1.0, 1.0, agents=0)


def test_kafka_pays_for_traffic_between_zones_and_for_disks() -> None:
    traffic_usd, disks_usd = kafka_month_usd((1 << 30) / MONTH_S, 1 << 30, S3_STANDARD)
    assert traffic_usd == pytest.approx((2 / 3 + 2) * 0.02)
    assert disks_usd == pytest.approx(3 * 0.08)
