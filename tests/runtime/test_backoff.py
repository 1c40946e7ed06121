"""The bounds of pauses double up to a maximum, and pauses are drawn below them."""

import pytest

from braidlog.runtime.backoff import Backoff
from braidlog.runtime.entropy import SeededEntropy


def test_the_bound_doubles_up_to_the_maximum() -> None:
    backoff = Backoff(first_s=0.05, max_s=0.3)
    assert [backoff.bound_s(failures) for failures in range(5)] == [0.05, 0.1, 0.2, 0.3, 0.3]


def test_it_stays_at_the_maximum_however_long_it_goes_on() -> None:
    assert Backoff(first_s=0.05, max_s=2.0).bound_s(10**6) == 2.0


@pytest.mark.parametrize("share_min", [0.0, 0.5])
def test_pauses_lie_between_the_least_share_and_the_bound(share_min: float) -> None:
    backoff, entropy = Backoff(1.0, 8.0, share_min), SeededEntropy(1)
    for failures in range(100):
        bound_s = backoff.bound_s(failures)
        assert share_min * bound_s <= backoff.pause_s(failures, entropy) <= bound_s
