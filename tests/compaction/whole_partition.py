"""A compaction of a whole partition in one call, as tests want it."""

from collections.abc import Callable, Generator, Sequence

from braidlog.compaction.key_collector import KeyCollector
from braidlog.compaction.limits import CompactionLimits
from braidlog.compaction.rewriter import E, Outcome, Rewriter
from braidlog.compaction.rules import Rules
from braidlog.compaction.runs import CompactedRun
from braidlog.records.opened_extents import ExtentBytes

_LIMITS_DEFAULT = CompactionLimits()


def compact_partition(
    extents: Sequence[E],
    read: Callable[[E], bytes | bytearray | memoryview],
    *,
    dirty_offset: int,
    rules: Rules,
    seed: bytes,
    limits: CompactionLimits = _LIMITS_DEFAULT,
) -> Generator[CompactedRun, None, Outcome[E]]:
    """Compact all extents of a partition, in the order of their offsets, up to where it may be compacted.

    Below `dirty_offset` no key occurs twice, because an earlier compaction ended there. `read` returns the bytes of an
    extent; each is read once or twice. `seed` is 16 random bytes. Every run replaces all that lies in its range of
    offsets. The generator's return value is the outcome.
    """
    collector = KeyCollector(dirty_offset=dirty_offset, rules=rules, seed=seed, limits=limits)
    for extent in extents:
        if collector.wants(extent.end_offset):
            collector.add(ExtentBytes(extent.base_offset, read(extent), extent.end_offset))
    rewriter: Rewriter[E] = Rewriter(collector.finish(), limits)
    for extent in extents:
        if rewriter.wants(extent):
            yield from rewriter.add(extent, read(extent))
    yield from rewriter.finish()
    return rewriter.outcome()
