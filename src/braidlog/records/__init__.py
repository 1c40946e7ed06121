"""Kafka record batches, version 2, as bytes. Pure: no I/O, no clock."""
