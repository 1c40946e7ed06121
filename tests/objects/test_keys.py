import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.objects.keys import (
    SLOTS_PER_SEQUENCE_MAX,
    DataKey,
    InvalidKey,
    JournalKey,
    ShuffleKey,
    check_key,
    data_key,
    data_prefixes,
    incarnation_prefix,
    journal_key,
    parse_data_key,
    parse_journal_key,
    parse_shuffle_key,
    sequence_prefix,
    shuffle_heartbeat_key,
    shuffle_key,
)

incarnations = st.text("abcXYZ019_-", min_size=1, max_size=64)
numbers = st.integers(0, 9_999_999_999)


@settings(max_examples=100, deadline=None)
@given(numbers, incarnations, numbers)
def test_data_keys_can_be_parsed(epoch: int, incarnation: str, number: int) -> None:
    key = data_key(epoch, incarnation, number)
    assert parse_data_key(check_key(key)) == DataKey(epoch, incarnation, number)
    assert key.startswith(data_prefixes())


@settings(max_examples=100, deadline=None)
@given(incarnations, incarnations, numbers)
def test_shuffle_keys_can_be_parsed(job: str, incarnation: str, number: int) -> None:
    key = shuffle_key(job, incarnation, number)
    assert parse_shuffle_key(check_key(key)) == ShuffleKey(job, incarnation, number)
    with pytest.raises(InvalidKey):
        parse_data_key(key)
    with pytest.raises(InvalidKey):
        parse_shuffle_key(shuffle_heartbeat_key(job))


@settings(max_examples=100, deadline=None)
@given(incarnations, numbers, st.integers(0, SLOTS_PER_SEQUENCE_MAX - 1))
def test_journal_keys_can_be_parsed(incarnation: str, sequence: int, slot: int) -> None:
    key = journal_key(incarnation, sequence, slot)
    assert parse_journal_key(check_key(key)) == JournalKey(incarnation, sequence, slot)
    assert key.startswith(sequence_prefix(incarnation, sequence))
    assert key.startswith(incarnation_prefix(incarnation))
    with pytest.raises(InvalidKey):
        parse_data_key(key)


@pytest.mark.parametrize(
    ("incarnation", "sequence", "slot"), [("a/b", 0, 0), ("a", -1, 0), ("a", 0, 1000), ("a", 0, -1)]
)
def test_what_no_journal_can_have(incarnation: str, sequence: int, slot: int) -> None:
    with pytest.raises(InvalidKey):
        journal_key(incarnation, sequence, slot)


@pytest.mark.parametrize("key", ["journal/a/0/0", "journal/a/0000000000/0000001000", "journal/0000000000/0000000000"])
def test_what_is_no_file_of_a_journal(key: str) -> None:
    with pytest.raises(InvalidKey):
        parse_journal_key(key)


@pytest.mark.parametrize("job", ["", "a/b", "a b", "x" * 65])
def test_jobs_that_cannot_be_part_of_a_key(job: str) -> None:
    with pytest.raises(InvalidKey):
        shuffle_key(job, "inc", 0)
    with pytest.raises(InvalidKey):
        shuffle_heartbeat_key(job)


def test_the_names_stay() -> None:
    assert shuffle_key("job", "inc", 7) == "shuffle/job/8/inc-0000000007"
    assert shuffle_heartbeat_key("job") == "shuffle/job/heartbeat"
    assert data_key(3, "inc", 7) == "data/8/0000000003/inc-0000000007"
    assert journal_key("inc", 3, 7) == "journal/inc/0000000003/0000000007"
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
