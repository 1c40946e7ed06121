"""Simulated clients that behave as real ones."""
