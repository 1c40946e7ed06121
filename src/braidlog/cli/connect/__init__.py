"""Connections to Kafka agents and to the control plane."""
