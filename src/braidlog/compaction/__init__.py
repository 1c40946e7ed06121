"""Decides which records of a compacted partition may go, and copies the rest.

Pure: no I/O, no clock. A compaction makes two passes over a partition's extents, in the order of their offsets. A
`KeyCollector` finds the latest offset of every key, and a `Rewriter` copies everything except what may go. Both take
one extent at a time, so a partition may be far larger than memory. The key map is bounded too: if it cannot hold all
keys, the compaction ends at the record for which it has no room, and another compaction can continue from there.
"""
