"""Commands that need no running cluster."""
