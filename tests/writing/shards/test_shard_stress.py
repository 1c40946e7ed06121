"""Shards as real processes on real shared memory, which do nothing but regroup and pull."""

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.scheduling.group_map import check_groups

from braidlog.node.machine import SUPERVISOR, Machine
from braidlog.scheduling.shard_groups import group_ids
from braidlog.writing.shards.board import BoardShape

ROOT = Path(__file__).parents[2]
ENDS_S_MAX = 280.0


def run_shards(shard_count: int, rounds: int, done: Path, *, journaled: bool = False) -> list[dict[str, Any]]:
    """Each shard writes one batch a round, and splits or merges its group if it can. Whoever sees an invalid map, or
    pulls without the lock of the ring's group, ends at once."""
    shape = BoardShape(shard_count, slot_count=64, arena_bytes=4096)
    machine = Machine.create(shape, "adaptive")
    with ExitStack() as stack:
        stack.callback(machine.close)
        processes = []
        for shard in range(shard_count):
            orders = {
                "shard": shard,
                "memory_fd": machine.memory_fd,
                "bells": machine.bells,
                "shape": [shape.shard_count, shape.slot_count, shape.arena_bytes],
                "rounds": rounds,
                "journaled": journaled,
                "done": str(done),
            }
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.writing.shards.stress_shard", json.dumps(orders)],
                    pass_fds=machine.fds,
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                )
            )
            stack.callback(process.kill)
            processes.append(process)
        reports = [json.loads(process.communicate(timeout=ENDS_S_MAX)[0] or b"null") for process in processes]
        assert all(reports), "a shard has failed: its reason is above"
        links = machine.links(SUPERVISOR)
        groups = (links.journal if journaled else links.classic).board.groups()
        check_groups(groups)
        # Every split was made once, and every merge undid one: no change of the map was lost.
        splits, merges = (sum(report[what] for report in reports) for what in ("splits", "merges"))
        assert 1 + splits - merges == len(group_ids(groups))
        return reports


def check(reports: list[dict[str, Any]], rounds: int) -> None:
    found = Counter(records for report in reports for records in report["uploaded"])
    expected = Counter(f"{shard}/{number}" for shard in range(len(reports)) for number in range(rounds))
    assert found == expected, f"lost {expected - found}, twice {found - expected}"
    assert not any(report["errors"] for report in reports)
    assert sum(report["splits"] for report in reports) > rounds
    assert sum(report["pulls"] for report in reports) > 0
    assert not any(report["left"] for report in reports), "somebody lost sight of a file"


def test_four_shards_journal_together(tmp_path: Path) -> None:
    """Every shard hears of all its batches that they are stored, and later that they are sequenced."""
    check(run_shards(4, 100, tmp_path, journaled=True), 100)


def test_four_shards_regroup_and_pull_at_once(tmp_path: Path) -> None:
    check(run_shards(4, 100, tmp_path), 100)


def test_and_on_a_machine_without_memfd_and_eventfd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "eventfd")
    check(run_shards(2, 100, tmp_path), 100)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("journaled", [False, True])
@pytest.mark.parametrize("shard_count", [3, 8])
def test_more_shards_regroup_and_pull_at_once(shard_count: int, journaled: bool, tmp_path: Path) -> None:
    rounds = 1_000 if shard_count < 8 else 300  # eight spin on however few cores there are
    check(run_shards(shard_count, rounds, tmp_path, journaled=journaled), rounds)
