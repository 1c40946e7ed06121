"""Transactions: the coordinator, its state and plans, and aborted ones."""
