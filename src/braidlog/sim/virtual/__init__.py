"""Replaces the operating system and the store in a simulated run."""
