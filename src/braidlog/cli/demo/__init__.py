"""`braid demo`: a guided tour of a real cluster."""
