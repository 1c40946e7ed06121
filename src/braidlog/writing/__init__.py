"""The write path: every stage from an accepted request to its acknowledgement."""
