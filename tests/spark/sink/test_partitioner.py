"""Kafka's default partitioner, for single keys and for whole columns."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.spark.sink.partitioner import assign_partitions, murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "expected"),
    # From the tests of Kafka's own clients.
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_kafkas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=40)), min_size=1, max_size=30), st.integers(1, 50))
def test_whole_columns_are_partitioned_as_single_keys_are(keys: list[bytes | None], count: int) -> None:
    padded = pa.array([b"before", *keys, None], pa.binary()).slice(1, len(keys))
    chosen, turn = assign_partitions(padded, len(keys), count, turn=3 % count)
    assert turn == (3 + sum(key is None for key in keys)) % count
    keyless = iter(range(3, 1000))
    expected = [next(keyless) % count if key is None else partition_of(key, count) for key in keys]
    assert chosen.tolist() == expected
