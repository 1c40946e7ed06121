"""Extents for the pipeline's benchmarks, made on demand: a partition of 10 GB need not fit into memory."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from braidlog.records.arrow import encode_batches

NOW_MS = 1_700_000_000_000
KEY_DIGITS = 10
_CRC_POSITION = 17
_CRC_START = 21


class BenchExtent(NamedTuple):
    base_offset: int
    end_offset: int


@dataclass
class Partition:
    """Records of the same size whose keys are drawn at random from `key_count`, in uncompressed batches.

    One extent is encoded; the others are copies of it with other keys patched in, and CRCs to match.
    """

    record_count: int
    key_count: int
    value_bytes: int
    batch_records: int
    extent_batches: int

    def __post_init__(self) -> None:
        import pyarrow as pa

        self.extent_records = self.batch_records * self.extent_batches
        if self.record_count % self.extent_records:
            raise ValueError(f"{self.record_count} records are no whole number of extents")
        value = np.random.default_rng(7).bytes(self.value_bytes)
        one = pa.table(
            {
                "key": pa.array([b"0" * KEY_DIGITS] * self.batch_records, pa.binary()),
                "value": pa.array([value] * self.batch_records, pa.binary()),
                "timestamp": pa.array(np.full(self.batch_records, NOW_MS)),
            }
        )
        batch = bytes(encode_batches(one, batch_bytes_max=1 << 30).data)
        self._batch_bytes = len(batch)
        self._template = np.frombuffer(batch * self.extent_batches, dtype=np.uint8)
        self._key_positions = self._find_keys(batch)
        self.made_cpu_s = 0.0
        """CPU time that making extents has taken: not what is measured."""

    def _find_keys(self, batch: bytes) -> NDArray[np.int64]:
        positions: list[int] = []
        position = 0
        while (position := batch.find(b"0" * KEY_DIGITS, position)) >= 0:
            positions.append(position)
            position += KEY_DIGITS + self.value_bytes
        if len(positions) != self.batch_records:
            raise ValueError("a value looks like a key")
        starts = np.arange(self.extent_batches, dtype=np.int64)[:, None] * self._batch_bytes
        found: NDArray[np.int64] = (starts + np.array(positions)).reshape(-1)
        return found

    @property
    def size_bytes(self) -> int:
        return len(self._template) * (self.record_count // self.extent_records)

    @property
    def extents(self) -> list[BenchExtent]:
        size = self.extent_records
        return [BenchExtent(start, start + size) for start in range(0, self.record_count, size)]

    def keys(self, extent: BenchExtent) -> NDArray[np.int64]:
        return np.random.default_rng(extent.base_offset).integers(0, self.key_count, self.extent_records)

    def distinct_keys(self) -> int:
        seen = np.zeros(self.key_count, dtype=bool)
        for extent in self.extents:
            seen[self.keys(extent)] = True
        return int(seen.sum())

    def read(self, extent: BenchExtent) -> memoryview:
        from fastcrc.crc32 import iscsi as crc32c

        started_s = time.process_time()
        data = self._template.copy()
        rest = self.keys(extent)
        for digit in range(KEY_DIGITS - 1, -1, -1):
            data[self._key_positions + digit] = 48 + rest % 10
            rest = rest // 10
        view = data.data
        for start in range(0, len(data), self._batch_bytes):
            crc = crc32c(view[start + _CRC_START : start + self._batch_bytes])
            view[start + _CRC_POSITION : start + _CRC_START] = crc.to_bytes(4, "big")
        self.made_cpu_s += time.process_time() - started_s
        return view

    def read_all(self) -> Iterator[tuple[BenchExtent, memoryview]]:
        for extent in self.extents:
            yield extent, self.read(extent)
