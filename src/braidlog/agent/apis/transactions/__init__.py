"""Producer ids and transactions."""
