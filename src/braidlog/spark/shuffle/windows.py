"""Windows of time, as Spark's `window` has them, a column at a time. Pure."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.errors import JobError

WINDOWS_PER_ROW_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Windows:
    """[start, start + length_us), where starts are `offset_us` and multiples of `slide_us` from there."""

    length_us: int
    slide_us: int
    offset_us: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.slide_us <= self.length_us or abs(self.offset_us) >= self.slide_us:
            raise JobError(
                f"windows of {self.length_us} µs every {self.slide_us} µs from {self.offset_us} µs on are not possible",
                help="A window is at least as long as its slide, and begins within it.",
            )
        if self.length_us > WINDOWS_PER_ROW_MAX * self.slide_us:
            raise JobError("a row would be in too many windows", help=f"{WINDOWS_PER_ROW_MAX} are possible.")

    def assign(self, times: pa.Array) -> tuple[npt.NDArray[np.int64] | None, pa.Array, pa.Array]:
        """Which rows are in a window (None: every row, once), and start and end of each one's. A row without a time is
        in none; where windows overlap, a row is in several."""
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
