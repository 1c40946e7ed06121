"""The order stage: remembers, before anything is awaited, which drafts must be sequenced before which."""

from braidlog.writing.place import Place
from braidlog.writing.request import Draft
from braidlog.writing.stage import DraftStage


class Order:
    """Batches of one connection to one partition are sequenced in the order of their arrival, even when their objects
    finish out of order. Drafts that share no partition do not wait for each other."""

    def __init__(self, next_stage: DraftStage) -> None:
        self._next = next_stage
        self._latest: dict[tuple[bytes, int], Place] = {}
        self._prune_at = 1024

    def submit(self, draft: Draft) -> None:
        followed: dict[int, None] = {}
        for key in draft.groups:
            earlier = self._latest.get(key)
            if earlier is not None and id(earlier) not in followed:
                followed[id(earlier)] = None
                draft.follow(earlier)
            self._latest[key] = draft
        self._prune()
        self._next.submit(draft)

    def enter(self, partition: tuple[bytes, int], place: Place) -> None:
        """Give something else than a draft its place in a partition's order."""
        earlier = self._latest.get(partition)
        if earlier is not None:
            place.follow(earlier)
        self._latest[partition] = place
        self._prune()

    def _prune(self) -> None:
        if len(self._latest) > self._prune_at:
            self._latest = {key: latest for key, latest in self._latest.items() if not latest.is_released}
            self._prune_at = max(1024, 2 * len(self._latest))
