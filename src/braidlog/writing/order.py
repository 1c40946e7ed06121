"""The order stage: notes which drafts must be sequenced before which.

It does so before anything is awaited.
"""

from braidlog.writing.order_node import OrderNode
from braidlog.writing.request import Draft
from braidlog.writing.stage import DraftStage


class Order:
    """Links each draft to the latest earlier ones that share a partition with it.

    So batches of one connection to one partition are sequenced in the order of their arrival, even when their objects
    finish out of order. Drafts that share no partition do not wait for each other.
    """

    def __init__(self, next_stage: DraftStage) -> None:
        self._next = next_stage
        self._latest: dict[tuple[bytes, int], OrderNode] = {}
        self._prune_at = 1024

    def submit(self, draft: Draft) -> None:
        followed: dict[int, None] = {}
        for key in draft.partitions:
            earlier = self._latest.get(key)
            if earlier is not None and id(earlier) not in followed:
                followed[id(earlier)] = None
                draft.follow(earlier)
            self._latest[key] = draft
        self._prune()
        self._next.submit(draft)

    def enter(self, partition: tuple[bytes, int], node: OrderNode) -> None:
        """Add a node that is no draft to the end of a partition's order."""
        earlier = self._latest.get(partition)
        if earlier is not None:
            node.follow(earlier)
        self._latest[partition] = node
        self._prune()

    def _prune(self) -> None:
        if len(self._latest) > self._prune_at:
            self._latest = {key: latest for key, latest in self._latest.items() if not latest.is_released}
            self._prune_at = max(1024, 2 * len(self._latest))
