"""Braidlog: a Kafka-compatible log whose only data layer is object storage."""

__version__ = "0.1.0"
