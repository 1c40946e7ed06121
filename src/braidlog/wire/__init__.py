"""Kafka requests and responses as bytes. Pure."""
