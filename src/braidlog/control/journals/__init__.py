"""Journals: sequenced files, waiting batches, and closing of sequences."""
