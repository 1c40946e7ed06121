"""What a machine gives its shards, with and without the calls that only Linux has."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from braidlog.node.machine import Machine
from braidlog.writing.shards.board import BoardShape

SHAPE = BoardShape(2, slot_count=8, arena_bytes=4096)

LOCK_AND_WRITE = """
import fcntl, mmap, sys
fd = int(sys.argv[1])
memory = mmap.mmap(fd, 0)
memory[-1] = 77
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["as it is", "without memfd and eventfd"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    if request.param != "as it is":
        for name in ("memfd_create", "eventfd"):
            monkeypatch.delattr(os, name, raising=False)
    with closing(Machine.create(SHAPE, "adaptive")) as machine:
        yield machine


def test_memory_and_locks_are_shared_with_other_processes(machine: Machine) -> None:
    links = machine.links(0)
    assert links.classic.try_lock(0)
    with subprocess.Popen(
        [sys.executable, "-c", LOCK_AND_WRITE, str(machine.memory_fd)],
        pass_fds=machine.fds,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        assert links.classic.files._words[-1] >> 56 == 77
        assert not links.classic.try_lock(1), "the other has it"
        assert links.journal.try_lock(1), "each path has its own locks"
        other.kill()
        other.wait()
        assert links.classic.try_lock(1), "the kernel takes it back from the dead"


async def test_a_bell_is_heard_however_often_it_is_rung(machine: Machine) -> None:
    links = [machine.links(shard).journal for shard in range(2)]
    heard = asyncio.Event()
    links[1].listen(heard.set)
    for _ in range(3):
        for _ in range(20_000):  # more than a pipe has room for
            links[0].wake(1)
        await heard.wait()
        heard.clear()
    asyncio.get_running_loop().remove_reader(machine.bells[3].read_fd)


def test_nothing_is_left_behind(machine: Machine) -> None:
    assert os.fstat(machine.memory_fd).st_nlink == 0
    assert len(set(machine.fds)) == len(machine.fds)
