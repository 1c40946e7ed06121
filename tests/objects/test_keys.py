import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.objects.keys import (
    DataKey,
    InvalidKey,
    check_key,
    data_key,
    data_prefixes,
    parse_data_key,
)

incarnations = st.text("abcXYZ019_-", min_size=1, max_size=64)
numbers = st.integers(0, 9_999_999_999)


@settings(max_examples=100, deadline=None)
@given(numbers, incarnations, numbers)
def test_data_keys_can_be_parsed(epoch: int, incarnation: str, number: int) -> None:
    key = data_key(epoch, incarnation, number)
    assert parse_data_key(check_key(key)) == DataKey(epoch, incarnation, number)
    assert key.startswith(data_prefixes())


def test_the_names_stay() -> None:
    assert data_key(3, "inc", 7) == "data/8/0000000003/inc-0000000007"
    assert data_prefixes()[0] == "data/0/"
    assert data_prefixes()[15] == "data/f/"


def test_keys_spread_over_all_prefixes() -> None:
    counts = dict.fromkeys(data_prefixes(), 0)
    for number in range(1600):
        counts[data_key(1, "0a1b2c3d", number)[:7]] += 1
    assert len(counts) == 16
    assert min(counts.values()) > 50


@pytest.mark.parametrize(
    "key",
    [
        "",
        "data/8/3/inc-7",
        "data/7/0000000003/inc-0000000007",
        "data/8/0000000003/inc-0000000007/x",
        "data/8/0000000003/inc-0000000007\n",
        "other/8/0000000003/inc-0000000007",
    ],
)
def test_what_is_no_data_key(key: str) -> None:
    with pytest.raises(InvalidKey):
        parse_data_key(key)


def test_what_cannot_be_in_a_key() -> None:
    for epoch, incarnation, number in [(-1, "a", 0), (0, "", 0), (0, "a/b", 0), (0, "a", 10**10), (0, "x" * 65, 0)]:
        with pytest.raises(InvalidKey):
            data_key(epoch, incarnation, number)
