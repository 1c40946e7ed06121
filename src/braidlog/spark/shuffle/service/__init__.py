"""The process on each node that packs the last rows of many tasks together."""
