"""The compiled loops apart from what they are used for: their hash, their raw records, and their bounds."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records.siphash_reference import siphash_128

from braidlog.records.opened_extents import UNREADABLE, ExtentBytes, batch_table, open_extents
from braidlog.records.problems import Problem
from braidlog.records.raw import index_opened
from braidlog.records.record import Record, encode_batch
from braidlog.records.siphash import siphash

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_gives_what_siphashs_authors_publish() -> None:
    seed = bytes(range(16))
    published = {
        0: "a3817f04ba25a8e66df67214c7550293",
        1: "da87c1d86b99af44347659119b22fc45",
    }
    for length, digest in published.items():
        low, high = siphash_128(seed, bytes(range(length)), 2, 4)
        assert (low.to_bytes(8, "little") + high.to_bytes(8, "little")).hex() == digest


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=16, max_size=16), st.binary(max_size=40), st.binary(max_size=5))
def test_the_compiled_hash_is_that_of_the_reference(seed: bytes, key: bytes, before: bytes) -> None:
    low, high = (np.uint64(int.from_bytes(seed[at : at + 8], "little")) for at in (0, 8))
    data = np.frombuffer(before + key + b"behind", dtype=np.uint8)
    assert siphash(low, high, data, len(before), len(key)) == siphash_128(seed, key, 1, 3)


def test_records_where_they_lie() -> None:
    records = [
        Record(0, 5, b"key", b"value", (("h", b"x"),)),
        Record(3, 7, None, None),
        Record(4, 6, b"", b""),
    ]
    extent = ExtentBytes(100, encode_batch(records[:2]) + encode_batch(records[2:]))
    [opened] = open_extents([extent], select=lambda table: table)
    raw = index_opened(opened)
    assert raw.count == 3
    assert raw.offsets.tolist() == [100, 103, 108]
    assert raw.timestamps_ms.tolist() == [5, 7, 6]
    assert raw.is_null.tolist() == [0, 1, 0]
    assert raw.row_starts.tolist() == [0, 2, 3]
    assert raw.problems.tolist() == [0, 0]
    places = raw.places.reshape(-1, 4)
    payload = opened.payload
    assert bytes(payload[places[0, 2] : places[0, 2] + places[0, 3]]) == b"key"
    assert places[:, 3].tolist() == [3, -1, 0]
    # A record's bytes are enough to make it again, in a batch of the same base offset and base timestamp.
    assert bytes(payload[places[0, 0] : places[1, 1]]) == encode_batch(records[:2])[61:]


def test_batches_that_cannot_be_read_are_told_apart() -> None:
    good = encode_batch([Record(0, 5, b"key", b"value")])
    odd = bytearray(good)
    odd[57:61] = (3).to_bytes(4, "big")
    extent = ExtentBytes(0, good + with_crc(bytes(odd)) + good)
    [opened] = open_extents([extent], select=lambda table: table, pass_unreadable=True)
    assert opened.table[:, 10].tolist() == [1, UNREADABLE, 1]
    raw = index_opened(opened)
    assert raw.problems.tolist() == [0, Problem.RECORD_COUNT, 0]
    assert raw.row_starts.tolist() == [0, 1, 1, 2]


def with_crc(batch: bytes) -> bytes:
    from crc32c import crc32c

    return batch[:17] + crc32c(batch[21:]).to_bytes(4, "big") + batch[21:]


def test_an_extent_without_bytes_has_no_batches() -> None:
    table, data = batch_table(ExtentBytes(5, b""))
    assert (len(table), len(data)) == (0, 0)
    assert list(open_extents([ExtentBytes(5, b"")], select=lambda table: table)) == []


def test_the_records_room_is_importable_without_compilers() -> None:
    """What an agent needs of it must not ask for numpy, numba or pyarrow."""
    code = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numpy", "numba", "pyarrow", "llvmlite"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import braidlog.records.record, braidlog.records.marker, braidlog.records.placement
import braidlog.records.summary, braidlog.records.aborted
import braidlog.compaction.rules, braidlog.compaction.due
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.slow
def test_no_compiled_loop_leaves_its_arrays(tmp_path: Path) -> None:
    """The tests of damage again, with loops that are compiled to check every index."""
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    compaction = ("tests/compaction/test_whole_partition.py", "tests/compaction/test_keymap.py")
    tests = ["tests/records/test_arrow.py", *compaction]
    chosen = "damaged or plain_python or dictionary or latest_offset or make_no_sense"
    command = [sys.executable, "-m", "pytest", "-q", "-x", *tests, "-k", chosen]
    subprocess.run(command, check=True, env=environment, cwd=ROOT, timeout=280)
