"""The committed offsets of all groups, in memory.

Every change here is durable already.
"""

from collections.abc import Callable, Iterable

from braidlog.control.groups.store import OffsetKey, StoredOffset
from braidlog.control.interface import CommittedOffset

_NOT_COMMITTED = StoredOffset(-1, -1, "", 0)


class GroupOffsets:
    def __init__(self) -> None:
        self._by_group: dict[str, dict[OffsetKey, StoredOffset]] = {}

    def load(self, offsets: dict[str, dict[OffsetKey, StoredOffset]]) -> None:
        self._by_group = offsets

    def group_ids(self) -> list[str]:
        return list(self._by_group)

    def count(self, group_id: str) -> int:
        return len(self._by_group.get(group_id, ()))

    def fetch(self, group_id: str, keys: Iterable[OffsetKey] | None) -> list[CommittedOffset]:
        """Return offsets in the order of `keys`; None: all of the group's."""
        offsets = self._by_group.get(group_id, {})
        answers = []
        for topic_id, partition in offsets if keys is None else keys:
            stored = offsets.get((topic_id, partition), _NOT_COMMITTED)
            answers.append(CommittedOffset(topic_id, partition, stored.offset, stored.leader_epoch, stored.metadata))
        return answers

    def put(self, group_id: str, offsets: dict[OffsetKey, StoredOffset]) -> None:
        self._by_group.setdefault(group_id, {}).update(offsets)

    def remove(self, group_id: str, keys: Iterable[OffsetKey]) -> None:
        offsets = self._by_group.get(group_id, {})
        for key in keys:
            offsets.pop(key, None)
        if not offsets:
            self._by_group.pop(group_id, None)

    def expire(self, group_id: str, expired: dict[OffsetKey, StoredOffset]) -> None:
        """Remove these offsets, except those committed again since they were selected."""
        offsets = self._by_group.get(group_id, {})
        self.remove(
            group_id,
            [key for key, old in expired.items() if key in offsets and offsets[key].committed_ms == old.committed_ms],
        )

    def remove_group(self, group_id: str) -> None:
        self._by_group.pop(group_id, None)

    def remove_topics(self, topic_ids: frozenset[bytes]) -> None:
        for group_id, offsets in list(self._by_group.items()):
            if gone := [key for key in offsets if key[0] in topic_ids]:
                self.remove(group_id, gone)

    def select(
        self, group_id: str, matches: Callable[[OffsetKey, StoredOffset], bool]
    ) -> dict[OffsetKey, StoredOffset]:
        return {key: stored for key, stored in self._by_group.get(group_id, {}).items() if matches(key, stored)}
