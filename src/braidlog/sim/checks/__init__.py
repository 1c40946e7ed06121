"""Finds what a correct log would never do: one module per subject."""
