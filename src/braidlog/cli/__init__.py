"""The braid command."""
