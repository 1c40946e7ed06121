"""Columns as Spark sees them: order, hashes, partitions and types."""
