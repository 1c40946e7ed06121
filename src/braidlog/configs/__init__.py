"""Definitions of topic, group and cluster configs, and their values."""
