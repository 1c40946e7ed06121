"""Time windows of rows, as Spark assigns them."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.aggregate.windows import Windows


def test_windows_overlap_and_have_offsets() -> None:
    times = pa.array([0, 7_000_000, None, -1], pa.timestamp("us", "UTC"))
    rows, starts, ends = Windows(10_000_000, 5_000_000, 2_000_000).assign(times)
    assert rows is not None
    assert rows.tolist() == [0, 0, 1, 1, 3, 3]
    assert starts.cast(pa.int64()).to_pylist() == [each * 1_000_000 for each in (-3, -8, 7, 2, -3, -8)]
    assert pc.subtract(ends, starts).cast(pa.int64()).unique().to_pylist() == [10_000_000]
    rows, starts, _ = Windows(5_000_000, 5_000_000).assign(times.drop_null())
    assert rows is None
    assert starts.cast(pa.int64()).to_pylist() == [0, 5_000_000, -5_000_000]
    for wrong in ((0, 1, 0), (1, 2, 0), (10, 5, 5), (10_000, 1, 0)):
        with pytest.raises(JobError):
            Windows(*wrong)
