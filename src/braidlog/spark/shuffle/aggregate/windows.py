"""Time windows, as Spark's `window` defines them, computed a column at a time.

This module is pure.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.errors import JobError

WINDOWS_PER_ROW_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows [start, start + length_us) that start every `slide_us`.

    They are shifted by `offset_us`.
    """

    length_us: int
    slide_us: int
    offset_us: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.slide_us <= self.length_us or abs(self.offset_us) >= self.slide_us:
            raise JobError(
                f"windows of {self.length_us} µs every {self.slide_us} µs from {self.offset_us} µs on are not possible",
                help="A window must be at least as long as its slide, and its offset smaller than the slide.",
            )
        if self.length_us > WINDOWS_PER_ROW_MAX * self.slide_us:
            raise JobError("a row would be in too many windows", help=f"At most {WINDOWS_PER_ROW_MAX} are supported.")

    def assign(self, times: pa.Array) -> tuple[npt.NDArray[np.int64] | None, pa.Array, pa.Array]:
        """Return the numbers of the rows in windows, and each window's start and end.

        None in place of the numbers means every row once. A row without a time is in no window. Where windows overlap,
        a row is in several.
        """
        kind = pa.timestamp("us", times.type.tz)
        times = times.cast(kind)
        rows: npt.NDArray[np.int64] | None = None
        if times.null_count:
            rows = np.flatnonzero(times.is_valid().to_numpy(zero_copy_only=False))
            times = times.drop_null()
        instants = times.cast(pa.int64()).to_numpy()
        last = instants - (instants - self.offset_us) % self.slide_us
        count = -(-self.length_us // self.slide_us)
        if count > 1:
            rows = np.arange(len(instants)) if rows is None else rows
            starts = (last[:, None] - np.arange(count) * self.slide_us).reshape(-1)
            inside = starts + self.length_us > np.repeat(instants, count)
            rows, last = np.repeat(rows, count)[inside], starts[inside]
        return rows, pa.array(last).cast(kind), pa.array(last + self.length_us).cast(kind)
