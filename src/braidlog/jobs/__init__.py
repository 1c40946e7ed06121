"""Runs jobs: merging, compaction, and the worker that takes them."""
