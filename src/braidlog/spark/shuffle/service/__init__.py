"""The process on each node: shared batches, the cache, the zone's ring."""
