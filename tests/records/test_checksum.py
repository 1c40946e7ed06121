"""The checksum that everything stored relies on, against one that somebody else has written."""

from crc32c import crc32c as reference
from fastcrc.crc32 import iscsi as crc32c
from hypothesis import given
from hypothesis import strategies as st

_BYTES = bytes((7 * place + place // 251) % 256 for place in range(70_000))


def test_the_check_value_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_every_short_length_at_every_alignment() -> None:
    """Vector code has a case for each of them."""
    view = memoryview(_BYTES)
    for length in range(600):
        start = length % 67
        assert crc32c(view[start : start + length]) == reference(view[start : start + length])
    for start in range(130):
        assert crc32c(view[start : start + 1100]) == reference(view[start : start + 1100])


@given(start=st.integers(0, 100), split=st.integers(0, 70_000), end=st.integers(100, 70_000))
def test_in_one_piece_and_in_two(start: int, split: int, end: int) -> None:
    whole = memoryview(_BYTES)[start:end]
    assert crc32c(whole) == reference(whole)
    assert crc32c(whole[split:], crc32c(whole[:split])) == reference(whole)
