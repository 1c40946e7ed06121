"""The first pass of a compaction: collects keys.

It finds the latest offset of every key that was not compacted before.
"""

from dataclasses import dataclass

from braidlog.compaction.judgements import judge_batches
from braidlog.compaction.keymap import KeyMap
from braidlog.compaction.limits import CompactionLimits
from braidlog.compaction.rules import Judge, Rules
from braidlog.records.batch_kernel import Field
from braidlog.records.compiled import Numbers
from braidlog.records.opened_extents import ExtentBytes, open_extents
from braidlog.records.raw import index_opened


@dataclass(frozen=True, slots=True)
class CollectedKeys:
    rules: Rules
    key_map: KeyMap
    clean_end_offset: int
    """All keys below it are in the map, or were compacted before."""


class KeyCollector:
    """Collects keys.

    Feed it extents in the order of their offsets, as long as it wants them.
    """

    def __init__(self, *, dirty_offset: int, rules: Rules, seed: bytes, limits: CompactionLimits) -> None:
        self._dirty_offset = dirty_offset
        self._rules = rules
        self._judge = Judge(rules)
        self._key_map = KeyMap(bytes_max=limits.key_map_bytes_max, seed=seed)
        self._decompressed_bytes_max = limits.decompressed_bytes_max
        self._end_offset = dirty_offset
        self._is_full = False

    def wants(self, end_offset: int) -> bool:
        """Return whether an extent that ends here has keys that fit in."""
        return not self._is_full and end_offset > self._dirty_offset

    def add(self, extent: ExtentBytes) -> None:
        """Add the keys of an extent."""
        if not self.wants(extent.end_offset):
            return

        def select(table: Numbers) -> Numbers:
            return table[table[:, Field.OFFSET] + table[:, Field.LAST_OFFSET_DELTA] >= self._dirty_offset]

        for opened in open_extents(
            [extent], select=select, decompressed_bytes_max=self._decompressed_bytes_max, pass_unreadable=True
        ):
            treatments = judge_batches(self._judge, opened.table).treatments
            left_out = self._key_map.add(index_opened(opened), treatments, self._dirty_offset)
            if left_out is not None:
                self._end_offset = left_out
                self._is_full = True
                return
        self._end_offset = extent.end_offset

    def finish(self) -> CollectedKeys:
        return CollectedKeys(self._rules, self._key_map, self._end_offset)
