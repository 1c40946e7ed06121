"""Runs a real cluster in virtual time, over a simulated network and store."""
