"""Client quotas: whose limit counts, how long a debt takes, and that buckets are bounded."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.agent.connections.quotas import (
    BUCKETS_MAX,
    BURST_S,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    THROTTLE_S_MAX,
    QuotaBook,
)
from braidlog.control.interface import ClientQuota


def book(*quotas: tuple[dict[str, str | None], float]) -> QuotaBook:
    found = QuotaBook()
    found.load(ClientQuota(sorted(entity.items()), {PRODUCER_BYTE_RATE: rate}) for entity, rate in quotas)
    return found


def wait_s(quotas: QuotaBook, taken_bytes: int, *, user: str = "u", client: str = "c", now_s: float = 0.0) -> float:
    return quotas.charge(PRODUCER_BYTE_RATE, user, client, taken_bytes, now_s)


def test_nothing_limits_where_there_is_no_quota() -> None:
    quotas = book()
    assert not quotas.limits_producers
    assert wait_s(quotas, 10**12) == 0.0
    quotas = book(({"client-id": "other"}, 10.0))
    assert quotas.limits_producers
    assert not quotas.limits_consumers
    assert wait_s(quotas, 10**12) == 0.0
    assert quotas.charge(CONSUMER_BYTE_RATE, "u", "other", 10**12, 0.0) == 0.0


def test_what_is_taken_beyond_the_burst_is_waited_for() -> None:
    quotas = book(({"client-id": "c"}, 100.0))
    assert wait_s(quotas, int(100 * BURST_S)) == 0.0
    assert wait_s(quotas, 50) == pytest.approx(0.5)
    assert wait_s(quotas, 0, now_s=0.5) == 0.0
    assert wait_s(quotas, 100, now_s=0.5) == pytest.approx(1.0)
    assert wait_s(quotas, 10**9, now_s=2.0) == THROTTLE_S_MAX


PLACES: list[dict[str, str | None]] = [
    {"user": "u", "client-id": "c"},
    {"user": "u", "client-id": None},
    {"user": "u"},
    {"user": None, "client-id": "c"},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": "c"},
    {"client-id": None},
]


@pytest.mark.parametrize("place", range(len(PLACES)))
def test_the_most_particular_limit_counts(place: int) -> None:
    quotas = book(*((entity, 10.0 + i) for i, entity in enumerate(PLACES) if i >= place))
    rate = 10.0 + place
    assert wait_s(quotas, int(rate) + 100) == pytest.approx(100 / rate)


def test_a_default_gives_everyone_a_bucket_of_their_own() -> None:
    quotas = book(({"client-id": None}, 10.0))
    assert wait_s(quotas, 20, client="a") == pytest.approx(1.0)
    assert wait_s(quotas, 20, client="b") == pytest.approx(1.0)
    assert wait_s(quotas, 10, client="a", user="another") == pytest.approx(2.0)


def test_buckets_are_bounded() -> None:
    quotas = book(({"client-id": None}, 10.0))
    for number in range(BUCKETS_MAX + 10):
        wait_s(quotas, 20, client=str(number))
    assert len(quotas._buckets) == BUCKETS_MAX
    assert wait_s(quotas, 0, client="0") == 0.0, "the oldest was forgotten"


def test_a_new_rate_holds_at_once() -> None:
    quotas = book(({"client-id": "c"}, 10.0))
    assert wait_s(quotas, 110) == pytest.approx(10.0)
    quotas.load([ClientQuota([("client-id", "c")], {PRODUCER_BYTE_RATE: 1000.0})])
    assert wait_s(quotas, 0) == pytest.approx(0.1)
    quotas.load([])
    assert not quotas.limits_producers
    assert wait_s(quotas, 10**6) == 0.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5_000), st.floats(0.0, 2.0)), min_size=1, max_size=60))
def test_a_client_that_waits_when_told_stays_within_its_rate(requests: list[tuple[int, float]]) -> None:
    quotas = book(({"client-id": "c"}, 1_000.0))
    now_s, taken = 0.0, 0
    for size, pause_s in requests:
        now_s += pause_s
        taken += size
        now_s += wait_s(quotas, size, now_s=now_s)
        assert taken <= 1_000.0 * (now_s + BURST_S) + 1e-6
