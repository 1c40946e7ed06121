"""Compaction of a partition: first the latest offset of every key, then everything again without what may go.

Both halves are fed extent by extent, in the order of offsets, so a partition may be far larger than memory. The key map
is bounded too. Where it cannot take all keys, the pass ends at the record for which it has no room, and another pass
can go on from there.
"""

from collections.abc import Callable, Generator, Sequence

from braidlog.compaction.collecting import KEY_MAP_BYTES_MAX, KeyCollector
from braidlog.compaction.rewriting import OBJECT_BYTES_TARGET, E, Outcome, Rewriter
from braidlog.compaction.rules import Rules
from braidlog.compaction.runs import CompactedRun
from braidlog.records.opened import DECOMPRESSED_BYTES_MAX, ExtentBytes


def compact_partition(
    extents: Sequence[E],
    read: Callable[[E], bytes | bytearray | memoryview],
    *,
    dirty_offset: int,
    rules: Rules,
    seed: bytes,
    key_map_bytes_max: int = KEY_MAP_BYTES_MAX,
    object_bytes_target: int = OBJECT_BYTES_TARGET,
    keep_bytes_min: int | None = None,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Generator[CompactedRun, None, Outcome[E]]:
    """Compact `extents`, which are all of a partition up to where it may be compacted, in the order of their offsets.

    Below `dirty_offset` no key is twice, because an earlier pass ended there. `read` gives an extent's bytes; each is
    read once or twice. `seed` is 16 random bytes. Every run takes the place of all in its range of offsets; together
    they cover what is replaced. With `keep_bytes_min`, extents of at least that length of which nothing goes are not
    written again. The generator's value is the outcome.

    Who cannot read in a callback drives a `KeyCollector` and a `Rewriter` in the same way.
    """
    collector = KeyCollector(
        dirty_offset=dirty_offset,
        rules=rules,
        seed=seed,
        key_map_bytes_max=key_map_bytes_max,
        decompressed_bytes_max=decompressed_bytes_max,
    )
    for extent in extents:
        if collector.wants(extent.end_offset):
            collector.add(ExtentBytes(extent.base_offset, read(extent), extent.end_offset))
    rewriter: Rewriter[E] = Rewriter(
        collector.finish(),
        object_bytes_target=object_bytes_target,
        keep_bytes_min=keep_bytes_min,
        decompressed_bytes_max=decompressed_bytes_max,
    )
    for extent in extents:
        if rewriter.wants(extent):
            yield from rewriter.add(extent, read(extent))
    yield from rewriter.finish()
    return rewriter.outcome()
