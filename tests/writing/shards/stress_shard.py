"""One of several processes that regroup and pull as fast as they can: see `test_shard_stress`.

Started with the descriptors of a `Machine`; prints what it did as JSON.
"""

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import structlog
from tests.scheduling.group_map import check_groups
from tests.writing.shards.shard_rig import ShardRig

from braidlog.node.machine import Bell, Machine
from braidlog.runtime.clock import SystemClock
from braidlog.writing.shards.board import Board, BoardShape, Ring
from braidlog.writing.shards.link import ShardLink

YIELDS_SHARE = 0.02
REGROUPS_PER_ROUND = 10
FAILED = "failed"


class RestlessWords:
    """The words of the shared memory, for somebody who gives up the processor in the middle of everything. By itself
    that happens once in some milliseconds, and what goes wrong in between would show once in some thousand runs."""

    def __init__(self, words: memoryview, entropy: random.Random) -> None:
        self._words = words
        self._entropy = entropy

    def __getitem__(self, key: Any) -> Any:
        if self._entropy.random() < YIELDS_SHARE:
            os.sched_yield()
        return self._words[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._entropy.random() < YIELDS_SHARE:
            os.sched_yield()
        self._words[key] = value

    def __len__(self) -> int:
        return len(self._words)

    def tolist(self) -> list[Any]:
        return [self[at] for at in range(len(self._words))]


def make_restless(board: Board, entropy: random.Random) -> None:
    words = RestlessWords(board._words, entropy)
    for part in (board, *board.rings):
        part._words = words  # type: ignore[assignment]
    if hasattr(board, "_starts"):
        board._starts = RestlessWords(board._starts, entropy)  # type: ignore[assignment]


class WatchingLink:
    """Knows which locks this process holds."""

    def __init__(self, link: ShardLink) -> None:
        self._link = link
        self.shard, self.board, self.files = link.shard, link.board, link.files
        self.other_board = link.other_board
        self.wake, self.listen = link.wake, link.listen
        self.held: set[int] = set()

    def try_lock(self, group: int) -> bool:
        taken = self._link.try_lock(group)
        if taken:
            self.held.add(group)
        return taken

    def unlock(self, group: int) -> None:
        self.held.discard(group)
        self._link.unlock(group)


def watch_heads(link: WatchingLink) -> None:
    """Check that a ring's head is moved only under the lock of its group."""
    owners = {id(ring): shard for shard, ring in enumerate(link.board.rings)}
    original = Ring.move_head

    def move_head(self: Ring, *moved: Any) -> None:
        group = link.board.group_of(owners[id(self)])
        assert group in link.held, (
            f"shard {link.shard} pulled from {owners[id(self)]} of group {group} without its lock"
        )
        original(self, *moved)

    Ring.move_head = move_head  # type: ignore[method-assign]


def fail(done: Path, context: dict[str, Any]) -> None:
    """Fail if anything goes wrong in a callback."""
    (done / FAILED).touch()
    sys.stderr.write(f"{context}\n")


async def run(machine: Machine, shard: int, rounds: int, done: Path, *, journaled: bool) -> dict[str, Any]:
    """`done` is a folder in which each leaves a file when all its batches are answered. Until all are there, others'
    batches must still be pulled and answered."""
    links = machine.links(shard)
    link = WatchingLink(links.journal if journaled else links.classic)
    board = link.board
    watch_heads(link)
    entropy = random.Random(shard)
    make_restless(board, entropy)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: fail(done, context))
    link.files._words = RestlessWords(link.files._words, entropy)  # type: ignore[assignment]
    rig = ShardRig(link, SystemClock(), journaled=journaled)
    rig.scheduler.start()
    others = range(board.shard_count)
    while not all(board.is_serving(other) for other in others):
        await asyncio.sleep(0)
    while len(rig.submitted) < rounds or len(list(done.iterdir())) < board.shard_count:
        if len(rig.submitted) < rounds:
            rig.write()
            for _ in range(REGROUPS_PER_ROUND):
                rig.policy.wants = "split" if entropy.random() < 0.5 else "merge"
                rig.scheduler._regrouper.step(rig.policy)
                check_groups(board.groups())
        elif rig.is_quiet:
            (done / str(shard)).touch()
        if (done / FAILED).exists():
            sys.exit(f"shard {shard} gives up, because another has failed")
        rig.scheduler._tick()
        check_groups(board.groups())
        rig.scheduler._pump()
        rig.scheduler._woken()
        rig.answer()
        await asyncio.sleep(0)
    figures = rig.scheduler.statistics
    rig.scheduler.close()
    return {
        "uploaded": [records.decode() for records in rig.uploaded],
        "errors": [code for code in rig.answered.values() if code],
        "splits": figures.splits,
        "merges": figures.merges,
        "pulls": figures.pulls,
        "left": len(rig.left),
    }


def main() -> None:
    told = json.loads(sys.argv[1])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    bells = tuple(Bell(*fds) for fds in told["bells"])
    machine = Machine(told["memory_fd"], bells, BoardShape(*told["shape"]))
    done = Path(told["done"])
    try:
        report = asyncio.run(run(machine, told["shard"], told["rounds"], done, journaled=told["journaled"]))
        print(json.dumps(report))
    except BaseException:
        (done / FAILED).touch()
        raise


if __name__ == "__main__":
    main()
