"""The bill by topic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.cost.prices import FREE, GB, MONTH_S, S3_EXPRESS, S3_STANDARD
from braidlog.cost.topics import OTHER_TOPICS, TopicMeter, share_out


def test_a_put_is_shared_out_by_bytes() -> None:
    assert share_out(6.0, {"a": 1, "b": 2, "c": 0}) == {"a": 2.0, "b": 4.0, "c": 0.0}
    assert share_out(6.0, {"a": 0, "b": 0}) == {"a": 3.0, "b": 3.0}
    assert share_out(6.0, {}) == {}


def test_a_bill_by_hand() -> None:
    meter = TopicMeter(S3_STANDARD, started_s=100.0)
    for second in range(60):
        meter.add_put({"orders": 3000, "clicks": 1000}, object_bytes=4100, now_s=100.0 + second)
    bills = meter.bills(160.0)
    assert list(bills) == ["orders", "clicks"]
    assert bills["orders"].upload_bytes == 180_000
    assert bills["orders"].usd == pytest.approx(60 * 5e-6 * 0.75)
    assert bills["clicks"].usd == pytest.approx(60 * 5e-6 * 0.25)
    assert bills["orders"].usd_month == pytest.approx(MONTH_S * 5e-6 * 0.75, rel=0.02)


def test_bytes_that_are_charged_for_are_in_the_price() -> None:
    meter = TopicMeter(S3_EXPRESS, started_s=0.0)
    meter.add_put({"a": GB}, object_bytes=GB, now_s=1.0)
    assert meter.bills(1.0)["a"].usd == pytest.approx(0.0032 + 0.00113 / 1000)
    free = TopicMeter(FREE, started_s=0.0)
    free.add_put({"a": 5}, object_bytes=9, now_s=1.0)
    assert free.bills(2.0)["a"].usd == free.bills(2.0)["a"].usd_month == 0


def test_the_projection_follows_the_pace_and_the_bill_stays() -> None:
    meter = TopicMeter(S3_STANDARD, started_s=0.0, memory_s=100.0)
    for second in range(1000):
        meter.add_put({"a": 1}, object_bytes=1, now_s=float(second))
    busy = meter.bills(1000.0)["a"]
    assert busy.usd_month == pytest.approx(MONTH_S * 5e-6, rel=0.02)
    idle = meter.bills(2000.0)["a"]
    assert idle.usd == busy.usd
    assert idle.usd_month < busy.usd_month / 1000
    assert meter.bills(0.0)["a"].usd_month == 0, "no time has passed"


def test_topics_beyond_the_limit_are_counted_together() -> None:
    meter = TopicMeter(S3_STANDARD, started_s=0.0, topics_max=2)
    for name in ("a", "b", "c", "d", "a"):
        meter.add_put({name: 10}, object_bytes=10, now_s=1.0)
    bills = meter.bills(2.0)
    assert {name: bill.upload_bytes for name, bill in bills.items()} == {"a": 20, "b": 10, OTHER_TOPICS: 20}


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10**6), min_size=1), max_size=30))
def test_what_topics_pay_is_what_was_paid(objects: list[dict[str, int]]) -> None:
    meter = TopicMeter(S3_STANDARD, started_s=0.0, topics_max=3)
    for number, bytes_by_topic in enumerate(objects):
        meter.add_put(bytes_by_topic, object_bytes=sum(bytes_by_topic.values()) + 100, now_s=float(number))
    bills = meter.bills(1e3).values()
    assert sum(bill.usd for bill in bills) == pytest.approx(5e-6 * len(objects))
    assert sum(bill.upload_bytes for bill in bills) == sum(sum(each.values()) for each in objects)
