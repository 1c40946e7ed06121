"""This shard's batches in journal files that members of its group wrote.

They are acknowledged, and not known to be sequenced yet.
"""

from collections import Counter
from dataclasses import dataclass, field

from braidlog.writing.journal.unsequenced import Partition, Unsequenced
from braidlog.writing.order_node import OrderNode
from braidlog.writing.shards.board import Board, PullerId
from braidlog.writing.shards.file_states import FileState, FileStates


@dataclass(slots=True)
class _File:
    """This shard's part of one file."""

    unsettled: list[OrderNode] = field(default_factory=list)
    """Nodes of batches that may not be overtaken yet."""
    partitions: Counter[Partition] = field(default_factory=Counter)


class JournaledBatches:
    """Follows the files that hold this shard's batches until they are sequenced.

    A batch may be followed by others of its partition as soon as its file is on its way to the control plane. When the
    file is sequenced, or left to be replayed, `Unsequenced` counts the batch no more. If a shard dies, its files are
    left to be replayed.

    Batches that were *taken over* were on the classic path when the control plane went away. Others behind them are
    still on it, perhaps at a shard that can reach the control plane. They wait until the file is sequenced, and are
    refused if it is left to be replayed.
    """

    def __init__(self, files: FileStates, board: Board, unsequenced: Unsequenced, *, taken_over: bool) -> None:
        self._files = files
        self._board = board
        self._unsequenced = unsequenced
        self._taken_over = taken_over
        self._open: dict[tuple[int, int, int], _File] = {}
        """Open files, by shard, its life, and the number of the file."""

    @property
    def is_empty(self) -> bool:
        return not self._open

    def add(self, puller: PullerId, number: int, node: OrderNode, partition: Partition) -> None:
        if self._taken_over:
            self._unsequenced.add(partition)
        file = self._open.setdefault((puller.shard, puller.life, number), _File())
        file.unsettled.append(node)
        file.partitions[partition] += 1

    def look(self) -> None:
        """See what has become of the files."""
        for key in list(self._open):
            state = self._state(*key)
            if state is FileState.STORED or (state is FileState.HANDED_OVER and self._taken_over):
                continue
            file = self._open[key]
            nodes, file.unsettled = file.unsettled, []
            if state is FileState.LEFT:
                del self._open[key]
                # First of all, so that nothing new follows on the classic path.
                self._unsequenced.left(file.partitions)
            for node in nodes:
                if state is FileState.LEFT and self._taken_over:
                    node.leave_behind()
                else:
                    node.settle()
            if state is FileState.SEQUENCED:
                del self._open[key]
                self._unsequenced.sequenced(file.partitions)

    def _state(self, shard: int, life: int, number: int) -> FileState:
        state = self._files.state(shard, number)
        if state >= FileState.SEQUENCED or self._board.life(shard) == life:
            return state
        # The dead shard says nothing more, but may have done so just before.
        state = self._files.state(shard, number)
        return state if state is FileState.SEQUENCED else FileState.LEFT
